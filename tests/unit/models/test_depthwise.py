"""Depthwise convolutions compute in float32 where bfloat16 is slow, and nothing else changes."""

import pytest
import torch
from torch import nn

from fedapp.models.architectures import build_personal_extractor
from fedapp.models.backbones import build_extractor
from fedapp.models.depthwise import DepthwiseConv2d, replace_depthwise


def plain_and_replaced(stride: int) -> tuple[nn.Conv2d, nn.Module]:
    """Return a depthwise convolution as PyTorch has it and as the models have it."""
    plain = nn.Conv2d(8, 8, 3, stride, padding=1, groups=8, bias=False)
    network = nn.Sequential(nn.Conv2d(8, 8, 3, stride, padding=1, groups=8, bias=False))
    network[0].load_state_dict(plain.state_dict())
    replace_depthwise(network)
    assert type(network[0]) is DepthwiseConv2d
    return plain, network[0]


def gradients(convolution: nn.Module, images: torch.Tensor, autocast: bool):
    images = images.clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        outputs = convolution(images)
    outputs.float().square().sum().backward()
    return outputs.detach(), images.grad, next(convolution.parameters()).grad


@pytest.mark.parametrize(("stride", "side"), [(2, 8), (1, 2), (2, 1)])
def test_where_bfloat16_is_slow_autocast_has_the_bits_of_float32(stride, side):
    plain, replaced = plain_and_replaced(stride)
    images = torch.randn(4, 8, side, side)
    for expected, found in zip(
        gradients(plain, images, False), gradients(replaced, images, True), strict=True
    ):
        assert found.dtype == torch.float32
        assert torch.equal(expected, found)


def test_elsewhere_autocast_computes_in_bfloat16():
    plain, replaced = plain_and_replaced(1)
    images = torch.randn(4, 8, 8, 8)
    results = gradients(plain, images, True), gradients(replaced, images, True)
    assert results[1][0].dtype == torch.bfloat16
    for expected, found in zip(*results, strict=True):
        assert torch.equal(expected, found)


def test_a_teacher_without_gradients_computes_in_bfloat16():
    _, replaced = plain_and_replaced(2)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert replaced(torch.randn(4, 8, 8, 8)).dtype == torch.bfloat16


def test_without_autocast_it_is_the_convolution_of_pytorch():
    plain, replaced = plain_and_replaced(2)
    images = torch.randn(4, 8, 8, 8)
    for expected, found in zip(
        gradients(plain, images, False), gradients(replaced, images, False), strict=True
    ):
        assert torch.equal(expected, found)


@pytest.mark.parametrize(
    ("network", "expected"),
    [
        (lambda: build_extractor("mobilenet", 3, 32), 13),
        (lambda: build_extractor("mobilenetv2", 3, 32), 17),
        (lambda: build_personal_extractor("mobilenetv2", 3, 32, 512), 17),
    ],
    ids=["mobilenet", "mobilenetv2", "personal mobilenetv2"],
)
def test_every_depthwise_convolution_is_replaced(network, expected):
    made = network()
    depthwise = [m for m in made.modules() if isinstance(m, nn.Conv2d) and m.groups > 1]
    assert len(depthwise) == expected
    assert all(type(module) is DepthwiseConv2d for module in depthwise)
