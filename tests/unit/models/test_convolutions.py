"""The quicker ways of convolutions on a CPU compute what PyTorch's convolution computes."""

import pytest
import torch
from torch import nn

from fedapp.models import convolutions
from fedapp.models.architectures import build_heterogeneous_extractor
from fedapp.models.backbones import build_extractor
from fedapp.models.convolutions import DenseConv2d, DepthwiseConv2d
from fedapp.models.quick_layers import use_plain_layers, use_quick_layers


def plain_and_replaced(stride: int) -> tuple[nn.Conv2d, nn.Module]:
    """Return a depthwise convolution as PyTorch has it and as the models have it."""
    plain = nn.Conv2d(8, 8, 3, stride, padding=1, groups=8, bias=False)
    network = nn.Sequential(nn.Conv2d(8, 8, 3, stride, padding=1, groups=8, bias=False))
    network[0].load_state_dict(plain.state_dict())
    use_quick_layers(network)
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
        (lambda: build_heterogeneous_extractor("mobilenetv2", 3, 32, 512), 17),
    ],
    ids=["mobilenet", "mobilenetv2", "personal mobilenetv2"],
)
def test_every_depthwise_convolution_is_replaced(network, expected):
    made = network()
    depthwise = [m for m in made.modules() if isinstance(m, nn.Conv2d) and m.groups > 1]
    assert len(depthwise) == expected
    assert all(type(module) is DepthwiseConv2d for module in depthwise)


def dense(
    kernel: int, bias: bool = True, padding: int | None = None, stride: int = 1
) -> tuple[nn.Conv2d, nn.Module]:
    """Return a dense convolution as PyTorch has it and as the models have it."""
    around = kernel // 2 if padding is None else padding
    plain = nn.Conv2d(128, 160, kernel, stride, around, bias=bias)
    network = nn.Sequential(nn.Conv2d(128, 160, kernel, stride, around, bias=bias))
    network[0].load_state_dict(plain.state_dict())
    use_quick_layers(network)
    assert type(network[0]) is DenseConv2d
    return plain, network[0]


def relative_error(expected: torch.Tensor, found: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.fixture(params=[False, True], ids=["without AMX", "AMX"])
def amx(request, monkeypatch):
    monkeypatch.setattr(convolutions, "_has_amx", lambda: request.param)
    return request.param


@pytest.fixture
def products(monkeypatch):
    """Count the matrices of patches that are made: none where PyTorch's convolution is used."""
    made: list[int] = []
    patches = convolutions._patches

    def count(images, kernel):
        made.append(kernel)
        return patches(images, kernel)

    monkeypatch.setattr(convolutions, "_patches", count)
    return made


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (1, 3)])
@pytest.mark.parametrize("kernel", [1, 3])
def test_a_product_has_the_outputs_and_gradients_of_the_convolution(kernel, shape, bias, products):
    plain, replaced = dense(kernel, bias)
    images = torch.randn(5, 128, *shape).to(memory_format=torch.channels_last)
    for expected, found in zip(
        gradients(plain, images, False), gradients(replaced, images, False), strict=True
    ):
        assert found.shape == expected.shape
        assert relative_error(expected, found) < 1e-5
    assert bool(products) == (shape != (1, 1))  # no patches of one pixel
    if bias:
        assert relative_error(plain.bias.grad, replaced.bias.grad) < 1e-5


ONE_OUTPUT = {  # kernel, padding, stride, shape of the images
    "in the middle": (3, 1, 1, (1, 1)),
    "a corner": (3, 1, 2, (2, 2)),
    "two sizes": (3, 1, 2, (2, 1)),
    "a pixel of four": (1, 0, 2, (2, 2)),
    "the whole kernel": (3, 0, 1, (3, 3)),
    "less than the image": (3, 0, 2, (4, 4)),
    "wide": (5, 2, 3, (2, 3)),
}


def one_output(case):
    kernel, padding, stride, shape = ONE_OUTPUT[case]
    images = torch.randn(5, 128, *shape).to(memory_format=torch.channels_last)
    return *dense(kernel, True, padding, stride), images


@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("case", ONE_OUTPUT)
def test_one_output_pixel_is_that_of_the_convolution(case, autocast, monkeypatch):
    monkeypatch.setattr(convolutions, "_has_amx", lambda: False)
    plain, replaced, images = one_output(case)
    steps: list[torch.Size] = []
    monkeypatch.setattr(convolutions, "_part", counted(convolutions._part, steps))
    for expected, found in zip(
        gradients(plain, images, False), gradients(replaced, images, autocast), strict=True
    ):
        assert found.shape == expected.shape
        assert relative_error(expected, found) < (0.02 if autocast else 1e-5)
    assert relative_error(plain.bias.grad, replaced.bias.grad) < (0.02 if autocast else 1e-5)
    assert replaced.weight.grad.dtype == torch.float32
    assert len(steps) == 2  # forward and backward


def counted(function, calls):
    """Return a function that notes the shape of its first argument."""

    def call(first, *others):
        calls.append(first.shape)
        return function(first, *others)

    return call


@pytest.mark.parametrize("case", ONE_OUTPUT)
def test_second_derivatives_of_one_output_pixel_are_those_of_the_convolution(case):
    plain, replaced, images = one_output(case)
    assert relative_error(*(second_derivative(layer, images) for layer in (plain, replaced))) < 1e-5


@pytest.mark.parametrize("shape", [(4, 4), (3, 2), (2, 3)])
def test_more_output_pixels_with_a_stride_have_the_bits_of_the_convolution(shape, amx):
    plain, replaced = dense(3, stride=2)
    images = torch.randn(5, 128, *shape)
    for expected, found in zip(
        gradients(plain, images, False), gradients(replaced, images, False), strict=True
    ):
        assert torch.equal(expected, found)


@pytest.mark.parametrize("side", [2, 4, 8])
@pytest.mark.parametrize("kernel", [1, 3])
def test_a_product_in_bfloat16_is_near_the_convolution_in_float32(kernel, side, amx, products):
    plain, replaced = dense(kernel)
    images = torch.randn(5, 128, side, side)
    with torch.autocast("cpu", torch.bfloat16):
        assert replaced(images).dtype == torch.bfloat16
    assert bool(products) == (side <= ({1: 8, 3: 4}[kernel] if amx else 2))
    for expected, found in zip(
        gradients(plain, images, False), gradients(replaced, images, True), strict=True
    ):
        assert relative_error(expected, found) < 0.02


@pytest.mark.parametrize("side", [2, 3, 4, 5])
@pytest.mark.parametrize("kernel", [1, 3])
def test_larger_images_have_the_bits_of_the_convolution(kernel, side, amx, products):
    plain, replaced = dense(kernel)
    images = torch.randn(5, 128, side, side)
    equal = [
        torch.equal(expected, found)
        for expected, found in zip(
            gradients(plain, images, False), gradients(replaced, images, False), strict=True
        )
    ]
    assert bool(products) == (side <= (4 if amx and kernel == 3 else 2))
    assert products or all(equal)


def test_an_evaluation_has_the_bits_of_the_convolution(products):
    """They do not depend on the number of threads."""
    plain, replaced = dense(3)
    images = torch.randn(5, 128, 2, 2)
    with torch.no_grad():
        assert torch.equal(plain(images), replaced(images))
    assert not products


def test_other_types_use_the_convolution_of_pytorch(products):
    plain, replaced = dense(3)
    images = torch.randn(2, 128, 2, 2, dtype=torch.float64)
    assert torch.equal(plain.double()(images), replaced.double()(images))
    assert not products


def test_second_derivatives_of_a_product_are_those_of_the_convolution(products):
    plain, replaced = dense(3)
    images = torch.randn(3, 128, 2, 2)
    assert relative_error(*(second_derivative(layer, images) for layer in (plain, replaced))) < 1e-5
    assert products


def second_derivative(layer, images):
    (first,) = torch.autograd.grad(layer(images).tanh().sum(), layer.weight, create_graph=True)
    return torch.autograd.grad(first.square().sum(), layer.weight)[0]


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(128, 128, 3, padding="same"),
        nn.Conv2d(128, 128, 1, padding=1),
        nn.Conv2d(128, 128, 3, padding=2, dilation=2),
        nn.Conv2d(128, 128, 3, padding=1, groups=2),
        nn.Conv2d(128, 128, 3, padding=1, padding_mode="reflect"),
        nn.Conv2d(64, 128, 1),
        nn.Conv2d(128, 64, 1),
    ],
    ids=["same", "only padding", "dilation", "groups", "reflect", "few in", "few out"],
)
def test_other_convolutions_stay_as_they_are(layer):
    use_quick_layers(layer)
    assert type(layer) is nn.Conv2d


@pytest.mark.parametrize(
    ("backbone", "expected"), [("vgg11", 6), ("mobilenet", 11), ("resnet18", 13), ("cnn", 0)]
)
def test_the_dense_convolutions_of_the_backbones_are_replaced(backbone, expected):
    made = [type(module) for module in build_extractor(backbone, 3, 32).modules()]
    assert made.count(DenseConv2d) == expected


def test_restored_convolutions_are_those_of_pytorch():
    network = build_extractor("mobilenet", 3, 32)
    use_plain_layers(network)
    made = [module for module in network.modules() if isinstance(module, nn.Conv2d)]
    assert made
    assert all(type(module) is nn.Conv2d for module in made)


def test_a_pytorch_that_does_not_know_the_processor_counts_as_one_without_amx(monkeypatch):
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    assert not convolutions._has_amx()
