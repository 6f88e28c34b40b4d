"""FedAlign: the Lipschitz estimate of a block, its reduced width, and its models."""

import pytest
import torch
from in_process import assert_same, differ, federate, settings

from clients.fedalign import at_width, stretch
from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError
from fedapp.models.backbones import BACKBONES, BackboneInfo, build_extractor

RUN = {"model": "resnet10", "lr": 0.05, "num_rounds": 1, "participation": 0.1, "batch_size": 50}


def test_the_stretch_is_the_spectral_norm_and_has_its_gradient():
    generator = torch.Generator().manual_seed(0)
    inputs, outputs = (torch.rand(3, c, s, s, generator=generator) for c, s in ((4, 6), (5, 3)))
    outputs.requires_grad_()
    pooled = torch.nn.functional.adaptive_avg_pool2d(inputs, 3).flatten(2)
    exact = torch.linalg.matrix_norm(pooled @ outputs.flatten(2).transpose(1, 2) / 9, 2)
    exact = exact * 64 / (4 * 5) ** 0.5
    estimate = stretch(inputs, outputs)
    torch.testing.assert_close(estimate, exact, rtol=1e-4, atol=0)
    expected = torch.autograd.grad(exact.sum(), outputs, retain_graph=True)[0]
    gradient = torch.autograd.grad(estimate.sum(), outputs)[0]
    torch.testing.assert_close(gradient, expected, rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("bn", ["batch", "running", "group"])
@pytest.mark.parametrize("name", ["resnet10", "resnet18"])
def test_a_block_at_full_width_is_the_block(name, bn):
    block = build_extractor(name, 3, 32, bn).layer4[-1].train()
    images = torch.rand(4, block.conv1.in_channels, 4, 4)
    if bn == "running":
        before = block.bn1.running_mean.clone()
    part = at_width(block, images, 0.25)
    torch.testing.assert_close(at_width(block, images, 1.0), block(images))
    assert part.shape == block(images).shape
    assert not torch.allclose(part, block(images))
    assert at_width(block, images, 0.3).shape == part.shape  # also of no whole group
    if bn == "running":
        at_width(block, images, 0.25)
        assert not torch.equal(block.bn1.running_mean, before)  # by the block's own passes


def test_without_weight_it_is_fedavg_bit_for_bit_and_with_it_not():
    plain = federate(settings(method="fedavg", **RUN))[0]
    assert_same(plain, federate(settings(method="fedalign", fedalign_mu=0.0, **RUN))[0])
    assert differ(plain, federate(settings(method="fedalign", **RUN))[0])


def test_only_resnets_can_be_aligned():
    blocks = "needs the basic blocks of a ResNet: its model must be one of resnet10, resnet18, "
    with pytest.raises(UserError, match=rf"{blocks}resnet18-imagenet-stem, not 'cnn'"):
        parse_config(settings(method="fedalign", model="cnn"))
    assert parse_config(settings(method="fedalign")).model == "resnet10"


def test_a_resnet_of_ones_own_is_allowed(monkeypatch):
    build = BACKBONES["resnet10"].build
    info = BackboneInfo(build, 512, has_batch_norm=True, has_basic_blocks=True)
    monkeypatch.setitem(BACKBONES, "mine", info)
    plain = federate(settings(method="fedavg", **{**RUN, "model": "mine"}))[0]
    assert differ(plain, federate(settings(method="fedalign", **{**RUN, "model": "mine"}))[0])
