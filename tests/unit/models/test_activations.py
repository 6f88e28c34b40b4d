"""ReLU on the bits of bfloat16 is PyTorch's ReLU."""

import pytest
import torch
from torch import nn

from fedapp.models.activations import ReLU
from fedapp.models.backbones import build_extractor
from fedapp.models.quick_layers import use_plain_layers


def every_bfloat16() -> torch.Tensor:
    """Return all 65,536 values, infinities and every NaN among them."""
    return torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(torch.bfloat16)


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("layout", ["flat", "channels_last"])
def test_every_value_and_its_gradient(inplace, layout):
    values = every_bfloat16()
    if layout == "channels_last":
        values = values.view(4, 64, 16, 16).contiguous(memory_format=torch.channels_last)
    given = torch.randn(values.shape).bfloat16()
    results = []
    for layer in (nn.ReLU(), ReLU(inplace)):
        leaf = values.clone().requires_grad_()
        outputs = layer(leaf * 1)
        outputs.backward(given)
        assert (outputs.dtype, outputs.stride()) == (torch.bfloat16, values.stride())
        results.append((outputs.detach(), leaf.grad))
    (expected, of_expected), (found, of_found) = results
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    known = ~values.isnan()
    assert torch.equal(of_found[known], of_expected[known])


def test_in_place_changes_the_input_and_otherwise_it_is_kept():
    for inplace in (False, True):
        values = torch.tensor([-1.0, 2.0]).bfloat16()
        with torch.no_grad():
            assert ReLU(inplace)(values).tolist() == [0.0, 2.0]
        assert (values[0] == 0) == inplace


@pytest.mark.parametrize("name", ["mobilenet", "vgg11", "resnet18"])
def test_a_training_step_in_bfloat16_keeps_its_bits(name):
    gradients = []
    for plain in (True, False):
        torch.manual_seed(0)
        network = build_extractor(name, 3, 32)
        assert sum(type(module) is ReLU for module in network.modules()) >= 8
        for module in network.modules() if plain else ():
            if type(module) is ReLU:
                use_plain_layers(module)
                assert type(module) is nn.ReLU
        images = torch.randn(4, 3, 32, 32).contiguous(memory_format=torch.channels_last)
        with torch.autocast("cpu", torch.bfloat16):
            network(images).float().square().mean().backward()
        gradients.append([parameter.grad for parameter in network.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))
