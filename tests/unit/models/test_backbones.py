"""Backbones: the published widths and parameter counts, and features from any image from 8x8 up."""

import math
from itertools import pairwise

import pytest
import torch
from torch import nn

from fedapp.core.errors import UserError
from fedapp.models.architectures import build_heterogeneous_extractor
from fedapp.models.backbones import BACKBONES, build_extractor


def seeded(name: str, channels: int = 3, image_size: int = 32, bn: str = "batch") -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build_extractor(name, channels, image_size, bn)


def count_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def convolution(inputs: int, outputs: int, kernel: int, bias: bool = False) -> int:
    return inputs * outputs * kernel * kernel + bias * outputs


def resnet_parameters(blocks: int) -> int:
    """Stem, stages of 3x3 basic blocks with a 1x1 shortcut where the width changes, and BN."""
    total, width = convolution(3, 64, 3) + 2 * 64, 64
    for outputs in (64, 128, 256, 512):
        for _ in range(blocks):
            total += convolution(width, outputs, 3) + convolution(outputs, outputs, 3)
            total += 4 * outputs
            if width != outputs:
                total += convolution(width, outputs, 1) + 2 * outputs
            width = outputs
    return total


def mobilenet_parameters() -> int:
    widths = [32, 64, 128, 128, 256, 256, 512, *[512] * 5, 1024, 1024]
    total = convolution(3, 32, 3) + 2 * 32
    for inputs, outputs in pairwise(widths):
        total += 9 * inputs + 2 * inputs + inputs * outputs + 2 * outputs
    return total


def mobilenetv2_parameters() -> int:
    """Table 2 of Sandler et al., 2018: expansion, channels and number of blocks of each stage."""
    total, width = convolution(3, 32, 3) + 2 * 32, 32
    stages = [(1, 16, 1), (6, 24, 2), (6, 32, 3), (6, 64, 4), (6, 96, 3), (6, 160, 3), (6, 320, 1)]
    for expansion, outputs, blocks in stages:
        for _ in range(blocks):
            hidden = expansion * width
            total += (width * hidden + 2 * hidden) * (expansion > 1)
            total += 9 * hidden + 2 * hidden + hidden * outputs + 2 * outputs
            width = outputs
    return total + 320 * 1280 + 2 * 1280


def vgg_parameters() -> int:
    widths = [3, 64, 128, 256, 256, 512, 512, 512, 512]
    pairs = pairwise(widths)
    return sum(convolution(a, b, 3, bias=True) for a, b in pairs) + 2 * (512 * 512 + 512)


EXPECTED = {
    "cnn": (512, 3 * 32 * 25 + 32 + 32 * 64 * 25 + 64 + 4096 * 512 + 512),
    "vgg11": (512, vgg_parameters()),
    "mobilenet": (1024, mobilenet_parameters()),
    "mobilenetv2": (1280, mobilenetv2_parameters()),
    "resnet10": (512, resnet_parameters(1)),
    "resnet18": (512, resnet_parameters(2)),
    "resnet18-imagenet-stem": (512, resnet_parameters(2) + 64 * 3 * (7 * 7 - 3 * 3)),
}


@pytest.mark.parametrize("name", ["cnn", "vgg11", "mobilenet"])
def test_activations_in_place_change_no_bit_of_a_training_step(name):
    images = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    in_place, apart = seeded(name), seeded(name)
    for module in apart.modules():
        if isinstance(module, nn.ReLU):
            assert module.inplace
            module.inplace = False
    for model in (in_place, apart):
        model(images).square().mean().backward()
    for own, other in zip(in_place.parameters(), apart.parameters(), strict=True):
        assert torch.equal(own.grad, other.grad)
    assert torch.equal(in_place(images), apart(images))


def test_the_table_is_the_one_tested_here():
    assert BACKBONES.keys() == EXPECTED.keys()


@pytest.mark.parametrize("name", EXPECTED)
def test_width_and_parameters_at_32_pixels_are_the_published_ones(name):
    width, parameters = EXPECTED[name]
    extractor = seeded(name)
    assert BACKBONES[name].feature_dim == width
    assert count_parameters(extractor) == parameters


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize(
    ("channels", "image_size"), [(1, 8), (3, 9), (1, 28), (3, 32), (3, 64), (1, 70)]
)
def test_features_are_finite_and_not_negative(name, channels, image_size):
    extractor = seeded(name, channels, image_size)
    with torch.no_grad():
        features = extractor(torch.randn(2, channels, image_size, image_size))
    assert features.shape == (2, EXPECTED[name][0])
    assert torch.isfinite(features).all()
    assert (features >= 0).all()
    assert (features > 0).any()


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("bn", ["batch", "running", "group"])
def test_a_gradient_reaches_every_parameter(name, bn):
    extractor = seeded(name, 3, 32, bn)
    extractor(torch.randn(4, 3, 32, 32)).square().sum().backward()
    for label, parameter in extractor.named_parameters():
        assert parameter.grad is not None, label
        assert parameter.grad.abs().sum() > 0, label


@pytest.mark.parametrize("name", EXPECTED)
def test_initial_weights_depend_on_the_global_seed_alone(name):
    first, second = seeded(name).state_dict(), seeded(name).state_dict()
    assert all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize("name", EXPECTED)
def test_norm_layers_follow_bn_and_the_table_says_whether_it_matters(name):
    def kinds(bn: str) -> set[tuple[type, bool]]:
        norms = (nn.BatchNorm2d, nn.GroupNorm)
        modules = seeded(name, bn=bn).modules()
        return {
            (type(m), bool(getattr(m, "track_running_stats", False)))
            for m in modules
            if isinstance(m, norms)
        }

    has_norm = BACKBONES[name].has_batch_norm
    assert kinds("batch") == ({(nn.BatchNorm2d, False)} if has_norm else set())
    assert kinds("running") == ({(nn.BatchNorm2d, True)} if has_norm else set())
    assert kinds("group") == ({(nn.GroupNorm, False)} if has_norm else set())


@pytest.mark.parametrize("name", [n for n in EXPECTED if BACKBONES[n].has_batch_norm])
def test_batch_statistics_hold_in_evaluation_too_and_keep_no_buffers(name):
    extractor = seeded(name, bn="batch")
    assert not list(extractor.buffers())
    images = torch.randn(6, 3, 32, 32)
    with torch.no_grad():
        training = extractor.train()(images)
        evaluation = extractor.eval()(images)
        alone = extractor(images[:2])
    assert torch.equal(training, evaluation)
    assert not torch.allclose(alone, evaluation[:2])


@pytest.mark.parametrize("name", [n for n in EXPECTED if BACKBONES[n].has_batch_norm])
def test_the_table_says_on_which_images_one_is_too_few_for_batch_norm(name):
    largest = BACKBONES[name].one_pixel_up_to
    with pytest.raises(ValueError, match="more than 1 value"):
        seeded(name, image_size=largest)(torch.randn(1, 3, largest, largest))
    more = largest + 1
    assert seeded(name, image_size=more)(torch.randn(1, 3, more, more)).isfinite().all()


@pytest.mark.parametrize("name", ["mobilenet", "resnet10"])
def test_group_norm_makes_images_independent_of_their_batch(name):
    extractor = seeded(name, bn="group")
    images = torch.randn(6, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(
            extractor(images)[:2], extractor(images[:2]), rtol=1e-4, atol=1e-5
        )


def test_vgg_convolutions_start_as_its_reference_says():
    convolutions = [m for m in seeded("vgg11").modules() if isinstance(m, nn.Conv2d)]
    assert len(convolutions) == 8
    for layer in convolutions:
        assert layer.bias is not None
        assert not layer.bias.any()
    for layer in convolutions[3:]:  # enough weights for a sharp estimate
        expected = math.sqrt(2 / (9 * layer.out_channels))
        assert layer.weight.std().item() == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(
    ("name", "image_size", "fan_out"),
    [
        ("resnet10", 32, False),
        ("resnet18", 32, False),
        ("resnet18", 64, True),
        ("resnet18-imagenet-stem", 32, True),
    ],
)
def test_resnets_start_as_their_reference_does(name, image_size, fan_out):
    """PyTorch's default, uniform in +-1/sqrt(fan in), for small stems; else torchvision's."""
    layers = [m for m in seeded(name, 3, image_size).modules() if isinstance(m, nn.Conv2d)]
    assert len(layers) == {"resnet10": 12, "resnet18": 20}[name.removesuffix("-imagenet-stem")]
    for layer in layers:
        if fan_out:
            deviation = math.sqrt(2 / (layer.kernel_size[0] ** 2 * layer.out_channels))
        else:
            deviation = math.sqrt(1 / (3 * layer.kernel_size[0] ** 2 * layer.in_channels))
        rough = 4 / math.sqrt(2 * layer.weight.numel())  # four standard errors
        assert layer.weight.std().item() == pytest.approx(deviation, rel=rough)
        assert (layer.weight.abs().max() <= math.sqrt(3) * deviation * 1.0001) == (not fan_out)


@pytest.mark.parametrize(("image_size", "stem"), [(32, (3, 1)), (64, (7, 2))])
def test_resnet_stem_fits_the_image_size(image_size, stem):
    extractor = seeded("resnet18", image_size=image_size)
    kernel, stride = stem
    assert extractor.conv1.kernel_size == (kernel, kernel)
    assert extractor.conv1.stride == (stride, stride)
    assert isinstance(extractor.maxpool, nn.Identity) == (image_size < 64)


@pytest.mark.parametrize(("image_size", "pixels"), [(32, 4), (64, 2), (224, 7)])
def test_mobilenetv2_keeps_more_pixels_of_small_images(image_size, pixels):
    features = seeded("mobilenetv2", image_size=image_size)[0]
    with torch.no_grad():
        assert features(torch.randn(2, 3, image_size, image_size)).shape[2:] == (pixels, pixels)


def test_mobilenetv2_starts_with_pytorchs_default_weights():
    layer = seeded("mobilenetv2")[0][-1][0]
    assert layer.weight.abs().max().item() == pytest.approx(320**-0.5, rel=1e-3)
    assert layer.weight.std().item() == pytest.approx((3 * 320) ** -0.5, rel=0.01)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("vgg16", 3, 32), "model 'vgg16' does not exist; did you mean 'vgg11'"),
        (("cnn", 3, 7), "'cnn' needs images of 8x8 pixels or more, not 7 wide"),
        (("cnn", 3, 32, "layer"), "bn 'layer' does not exist; there is batch, running, group"),
    ],
)
def test_mistakes_are_named(arguments, message):
    with pytest.raises(UserError, match=message):
        build_extractor(*arguments)


@pytest.mark.parametrize("name", EXPECTED)
def test_channels_last_changes_no_feature_beyond_rounding(name):
    # the ImageNet stem leaves one pixel of 32: batch statistics of three values amplify rounding
    size = 128 if name.endswith("imagenet-stem") else 32
    images = torch.randn(3, 3, size, size, generator=torch.Generator().manual_seed(0))
    extractor = seeded(name)
    with torch.no_grad():
        plain = extractor(images)
        extractor.to(memory_format=torch.channels_last)
        last = extractor(images.contiguous(memory_format=torch.channels_last))
    assert (last - plain).norm() < 1e-3 * plain.norm()


def before_pooling(network: nn.Sequential) -> nn.Sequential:
    """Return the same layers with each ReLU before the max-pooling, as the papers draw them."""
    layers = list(network)
    for place, layer in enumerate(network):
        if isinstance(layer, nn.MaxPool2d):
            assert isinstance(layers[place + 1], nn.ReLU)
            layers[place], layers[place + 1] = layers[place + 1], layer
    assert layers != list(network)
    return nn.Sequential(*layers)


@pytest.mark.parametrize("build", [
    lambda: build_extractor("cnn", 3, 32), lambda: build_extractor("vgg11", 3, 32),
    lambda: build_heterogeneous_extractor("fedavgcnn", 3, 32, 64, "linear")[0],
    lambda: build_heterogeneous_extractor("resnet4", 3, 32, 64, "linear")[0],
])  # fmt: skip
def test_relu_after_pooling_changes_no_bit_of_outputs_and_gradients(build):
    torch.manual_seed(0)
    network = build()
    images = torch.randn(4, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    results = []
    for ordered in (before_pooling(network), network):
        network.zero_grad()
        outputs = ordered(images)
        outputs.square().mean().backward()
        results.append([outputs.detach(), *(p.grad.clone() for p in network.parameters())])
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))
