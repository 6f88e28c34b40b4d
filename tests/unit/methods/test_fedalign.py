"""FedAlign: the Lipschitz estimate of a block, its reduced width, and its models."""

import pytest
import torch
from in_process import assert_same, differ, federate, settings

from clients.fedalign import at_width, part_channels, stretch
from clients.training.objective import Step
from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError
from fedapp.models.backbones import BACKBONES, BackboneInfo, build_extractor
from fedapp.runtime.process.context import ProcessContext

RUN = {"model": "resnet10", "lr": 0.05, "num_rounds": 1, "participation": 0.1, "batch_size": 50}


def test_the_stretch_is_the_spectral_norm_and_has_its_gradient():
    generator = torch.Generator().manual_seed(0)
    inputs, outputs = (torch.rand(3, c, s, s, generator=generator) for c, s in ((4, 6), (5, 3)))
    outputs.requires_grad_()
    pooled = torch.nn.functional.adaptive_avg_pool2d(inputs, 3).flatten(2)
    exact = torch.linalg.matrix_norm(pooled @ outputs.flatten(2).transpose(1, 2) / 9, 2)
    estimate = stretch(inputs, outputs)
    torch.testing.assert_close(estimate, exact, rtol=1e-4, atol=0)
    expected = torch.autograd.grad(exact.sum(), outputs, retain_graph=True)[0]
    gradient = torch.autograd.grad(estimate.sum(), outputs)[0]
    torch.testing.assert_close(gradient, expected, rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("bn", ["batch", "running", "group"])
@pytest.mark.parametrize("name", ["resnet10", "resnet18"])
def test_a_stage_at_full_width_is_the_stage(name, bn):
    stage = build_extractor(name, 3, 32, bn).layer4.train()
    images = torch.rand(4, 256, 8, 8)
    torch.testing.assert_close(at_width(stage, images, 1.0), stage(images))
    assert at_width(stage, images[:, :64], 0.25).shape == (4, 128, 4, 4)
    if bn == "running":
        before = stage[0].bn1.running_mean.clone()
        at_width(stage, images[:, :64], 0.25)
        assert torch.equal(stage[0].bn1.running_mean, before)


def test_the_narrow_stage_sees_nothing_of_the_other_channels():
    stage = build_extractor("resnet10", 3, 32, "batch").layer4.train()
    images = torch.rand(4, 64, 8, 8)
    part = at_width(stage, images, 0.25)
    with torch.no_grad():
        stage[0].conv1.weight[128:] += 1
        stage[0].conv1.weight[:, 64:] += 1
        stage[0].conv2.weight[:, 128:] += 1
        stage[0].downsample[0].weight[128:] += 1
    torch.testing.assert_close(at_width(stage, images, 0.25), part, rtol=0, atol=0)


def test_a_share_of_the_channels_is_of_whole_groups():
    groups = torch.nn.GroupNorm(4, 64)
    assert [part_channels(64, share, groups) for share in (0.01, 0.3, 0.5, 1.0)] == [16, 16, 32, 64]
    batch = torch.nn.BatchNorm2d(64)
    assert [part_channels(64, share, batch) for share in (0.01, 0.3, 1.0)] == [1, 19, 64]


@pytest.mark.parametrize(("mu", "width"), [(0.45, 0.25), (0.2, 0.5)])
def test_the_alignment_is_a_share_of_the_loss_and_trains_the_last_stage_alone(mu, width):
    (plain, loss), (aligned, same) = gradients(0.0, width), gradients(mu, width)
    assert loss == same
    process = ProcessContext(parse_config(settings(method="fedalign", **RUN)))
    stage, images = process.model.train().extractor.layer4, first_images(process)[0]
    for layer in (layer for name, layer in process.model.extractor.named_children()):
        if layer is stage:
            break
        images = layer(images)
    inputs = images.detach()
    narrow = inputs[:, : int(256 * width)]
    whole, part = stage(inputs).detach(), at_width(stage, narrow, width)
    distance = (stretch(narrow, part) - stretch(inputs, whole)).square().mean()
    distance.backward()
    for name, own in process.model.named_parameters():
        added = aligned[name] - plain[name]
        assert bool(added.any()) == name.startswith("extractor.layer4"), name
        if own.grad is not None:
            expected = mu * loss / distance.detach() * own.grad
            torch.testing.assert_close(added, expected, rtol=1e-2, atol=1e-3)


def test_a_stage_is_not_aligned_with_itself():
    with pytest.raises(UserError, match=r"'fedalign-width' is 1\.0 but must be less than 1"):
        parse_config(settings(method="fedalign", fedalign_width=1.0))


def gradients(mu: float, width: float) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return the gradients of client 0's first images, and the loss."""
    keys = {"fedalign_mu": mu, "fedalign_width": width, **RUN}
    process = ProcessContext(parse_config(settings(method="fedalign", **keys)))
    model = process.model.train()
    images, labels = first_images(process)

    def forward() -> Step:
        return Step(labels, *model(images), model.get_parameter("head.weight"))

    loss = process.client(0).gradients(forward, process.objective)
    return {name: each.grad.clone() for name, each in model.named_parameters()}, loss


def first_images(process: ProcessContext) -> tuple[torch.Tensor, torch.Tensor]:
    return next(iter(process.client(0).data.test()))


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
