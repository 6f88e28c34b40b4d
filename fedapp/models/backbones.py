"""Extractors: the networks of the papers' tables, without their last linear layer.

Methods differ in the head, so a backbone ends at the features that the head sees: the
post-activation values (non-negative) of its last hidden layer. Widths and layers are those of the
reference codes; small changes make every backbone take images from 8x8 pixels up. ReLU comes after
max-pooling, not before it: the same bits, forward and backward, from a quarter of the values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import psutil
import torch
from torch import nn

from fedapp.core.errors import OWN, UserError, unknown
from fedapp.core.extension_files import own_mistake
from fedapp.models.quick_layers import use_quick_layers

NormLayer = Callable[[int], nn.Module]

relu = partial(nn.ReLU, inplace=True)  # the same bits with one memory pass less
BackboneProperty = Literal["", "has_batch_norm", "has_basic_blocks"]

_CHANNELS_PER_GROUP = 16
_SMALL_IMAGE_BELOW = 64
_LARGE_IMAGE_ABOVE = 256
_COPIES = 4  # of a model under training, at least: weights, gradients, momentum, those received

NORMS: dict[str, NormLayer] = {
    "batch": partial(nn.BatchNorm2d, track_running_stats=False),
    "running": nn.BatchNorm2d,
    "group": lambda width: nn.GroupNorm(width // _CHANNELS_PER_GROUP, width),
}


@dataclass(frozen=True)
class BackboneInfo:
    """One row of the table of backbones.

    Attributes:
        build: makes the extractor from (channels, image size, normalisation layer).
        feature_dim: number of features d.
        has_batch_norm: whether `bn` has an effect.
        one_pixel_up_to: side of the largest images that the last BatchNorm sees as one pixel; 0:
            none.
        has_basic_blocks: whether its stages `layer1` to `layer4` are basic blocks of torchvision's
            ResNets.
    """

    build: Callable[[int, int, NormLayer], nn.Module]
    feature_dim: int
    has_batch_norm: bool
    one_pixel_up_to: int = 0
    has_basic_blocks: bool = False


def build_extractor(name: str, channels: int, image_size: int, bn: str = "batch") -> nn.Module:
    """Build an extractor, initialised from torch's global generator.

    Args:
        name: a key of `BACKBONES`.
        channels: of the images, 1 or 3.
        image_size: side of the square images in pixels, 8 or more.
        bn: "batch" normalises by batch statistics, in evaluation too (no running buffers, as the
            reference codes do); "running" keeps running averages; "group" is GroupNorm.

    Returns:
        A module that maps float32 [B, channels, H, W] to features [B, feature_dim].

    Raises:
        UserError: unknown name or `bn`, images that are too small, a model that is too large, or a
            network of the user's own that does not give the features that its row states.
    """
    if name not in BACKBONES:
        raise unknown("model", name, BACKBONES, OWN)
    if bn not in NORMS:
        raise unknown("bn", bn, NORMS)
    if image_size < 8:
        raise UserError(f"model '{name}' needs images of 8x8 pixels or more, not {image_size} wide")
    build = partial(BACKBONES[name].build, channels, image_size, NORMS[bn])
    check_memory(name, image_size, build)
    extractor = build()
    if name not in _BUILT_IN:
        _check_features(name, extractor, channels, image_size)
    use_quick_layers(extractor)
    return extractor


def _check_features(name: str, extractor: nn.Module, channels: int, image_size: int) -> None:
    """Raise UserError unless an extractor maps two images to [2, feature_dim]."""
    images, width = torch.zeros(2, channels, image_size, image_size), BACKBONES[name].feature_dim
    was_training = extractor.training
    try:
        with torch.no_grad():
            shape = list(extractor.eval()(images).shape)
    except Exception as error:
        where = own_mistake(error) or f"{type(error).__name__}: {error}"
        raise UserError(
            f"model '{name}' cannot take images of shape {list(images.shape)}: {where}"
        ) from error
    finally:
        extractor.train(was_training)
    if shape != [2, width]:
        raise UserError(
            f"model '{name}' maps two images to features of shape {shape}, but its BackboneInfo "
            f"has feature_dim={width}, so that it must be [2, {width}]"
        )


def check_memory(name: str, image_size: int, build: Callable[[], nn.Module]) -> None:
    """Raise UserError if large images make a model too large for the memory of this machine.

    The hidden layer of some networks grows with the image. Nothing is allocated here.
    """
    if image_size <= _LARGE_IMAGE_ABOVE:
        return
    with torch.device("meta"):
        weights = sum(tensor.numel() for tensor in build().parameters())
    needed, memory = 4 * weights * _COPIES, psutil.virtual_memory().total
    if needed > memory:
        raise UserError(
            f"images of {image_size}x{image_size} pixels give model '{name}' {weights / 1e9:.1f} "
            f"billion weights, whose training needs more than {needed / 1e9:.0f} GB, and this "
            f"machine has {memory / 1e9:.0f}: resize the images, or take a model that averages "
            "over the image, such as resnet18"
        )


def fitting_backbones(need: BackboneProperty) -> list[str]:
    """Return the names of all backbones with a property, a field of `BackboneInfo`; empty: all."""
    return [name for name, info in BACKBONES.items() if not need or getattr(info, need)]


def normalises_by_batch(name: str, bn: str) -> bool:
    """Return whether a backbone's BatchNorm uses the statistics of the batch, also in tests."""
    return BACKBONES[name].has_batch_norm and bn == "batch"


def needs_two(name: str, image_size: int, bn: str) -> bool:
    """Return whether a BatchNorm of this backbone needs two images: it sees one pixel of each."""
    return bn != "group" and image_size <= BACKBONES[name].one_pixel_up_to


def _cnn(channels: int, image_size: int, norm: NormLayer) -> nn.Module:
    """Two 5x5 convolutions and one hidden layer (the CNN of McMahan et al., 2017, and FedNTD)."""
    side = image_size // 2 // 2
    return nn.Sequential(
        nn.Conv2d(channels, 32, 5, padding=2), nn.MaxPool2d(2), relu(),
        nn.Conv2d(32, 64, 5, padding=2), nn.MaxPool2d(2), relu(),
        nn.Flatten(), nn.Linear(64 * side * side, 512), relu(),
    )  # fmt: skip


def _vgg11(channels: int, image_size: int, norm: NormLayer) -> nn.Module:
    """VGG11 without batch normalisation or dropout and two hidden layers of 512 units."""
    layers: list[nn.Module] = []
    width, side = channels, image_size
    for *widths, last in ((64,), (128,), (256, 256), (512, 512), (512, 512)):
        for outputs in widths:
            layers += [_vgg_convolution(width, outputs), relu()]
            width = outputs
        # Rounding up keeps at least one pixel; 32x32 needs no rounding.
        layers += [_vgg_convolution(width, last), nn.MaxPool2d(2, ceil_mode=True), relu()]
        width, side = last, (side + 1) // 2
    hidden = [nn.Linear(512 * side * side, 512), relu(), nn.Linear(512, 512), relu()]
    return nn.Sequential(*layers, nn.Flatten(), *hidden)


def _vgg_convolution(inputs: int, outputs: int) -> nn.Conv2d:
    """Make a 3x3 convolution with weights from N(0, 2 / (3 * 3 * outputs)) and zero bias."""
    convolution = nn.Conv2d(inputs, outputs, 3, padding=1)
    nn.init.normal_(convolution.weight, 0.0, (2.0 / (9 * outputs)) ** 0.5)
    nn.init.zeros_(convolution.bias)  # type: ignore[arg-type]
    return convolution


def _mobilenet(channels: int, image_size: int, norm: NormLayer) -> nn.Module:
    """MobileNet v1 (Howard et al., 2017) with stride 1 in the stem, for 32x32 images."""
    layers = _conv_norm_relu(channels, 32, norm, kernel=3)
    width = 32
    blocks = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5]
    for outputs, stride in [*blocks, (1024, 2), (1024, 1)]:
        layers += _conv_norm_relu(width, width, norm, kernel=3, stride=stride, groups=width)
        layers += _conv_norm_relu(width, outputs, norm, kernel=1)
        width = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def _mobilenetv2(channels: int, image_size: int, norm: NormLayer) -> nn.Module:
    """MobileNetV2 (Sandler et al., 2018) without dropout, initialised as the networks above.

    Small images have stride 1 in the stem and in the second stage: 32x32 pixels end as 4x4.
    """
    from torchvision.models import MobileNetV2

    early = 1 if image_size < _SMALL_IMAGE_BELOW else 2
    stages = [  # expansion, channels, blocks, stride
        [1, 16, 1, 1], [6, 24, 2, early], [6, 32, 3, 2], [6, 64, 4, 2],
        [6, 96, 3, 1], [6, 160, 3, 2], [6, 320, 1, 1],
    ]  # fmt: skip
    features: Any = MobileNetV2(inverted_residual_setting=stages, norm_layer=norm).features
    features[0][0] = nn.Conv2d(channels, 32, 3, early, padding=1, bias=False)
    for module in features.modules():
        if isinstance(module, nn.Conv2d):
            module.reset_parameters()
    return nn.Sequential(features, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def _conv_norm_relu(
    inputs: int, outputs: int, norm: NormLayer, *, kernel: int, stride: int = 1, groups: int = 1
) -> list[nn.Module]:
    convolution = nn.Conv2d(
        inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False
    )
    return [convolution, norm(outputs), relu()]


def _resnet(
    blocks_per_stage: int,
    channels: int,
    image_size: int,
    norm: NormLayer,
    *,
    small_image_below: int = _SMALL_IMAGE_BELOW,
) -> nn.Module:
    """ResNet (He et al., 2016) of basic blocks; small images have a 3x3 stem without pooling.

    Networks with the small stem start with PyTorch's default weights, as in the code of FedNTD and
    FedBABU, those with ImageNet's stem with torchvision's, N(0, 2 / (k^2 outputs)). The latter are
    up to sqrt(6) times larger, so that under BatchNorm an SGD step changes them six times less.
    """
    from torchvision.models.resnet import BasicBlock, ResNet

    network = ResNet(BasicBlock, [blocks_per_stage] * 4, norm_layer=norm)
    network.fc = nn.Identity()
    if image_size < small_image_below:
        network.conv1 = nn.Conv2d(channels, 64, 3, stride=1, padding=1, bias=False)
        network.maxpool = nn.Identity()
        for module in network.modules():
            if isinstance(module, nn.Conv2d):
                module.reset_parameters()
        return network
    if channels != 3:
        network.conv1 = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
    nn.init.kaiming_normal_(network.conv1.weight, mode="fan_out", nonlinearity="relu")
    return network


BACKBONES: dict[str, BackboneInfo] = {
    "cnn": BackboneInfo(_cnn, 512, False),
    "vgg11": BackboneInfo(_vgg11, 512, False),
    "resnet10": BackboneInfo(partial(_resnet, 1), 512, True, 8, True),
    "resnet18": BackboneInfo(partial(_resnet, 2), 512, True, 8, True),
    # with the 7x7 stem also for small images
    "resnet18-imagenet-stem": BackboneInfo(
        partial(_resnet, 2, small_image_below=0), 512, True, 32, True
    ),
    "mobilenet": BackboneInfo(_mobilenet, 1024, True, 16),
    "mobilenetv2": BackboneInfo(_mobilenetv2, 1280, True, 8),
}
_BUILT_IN = frozenset(BACKBONES)  # the others are of the user or of another package
