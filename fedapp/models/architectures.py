"""Architectures of heterogeneous clients, and the map from native features to K features.

Personal models are the networks of the FedDOR paper's groups in the authors' configuration:
torchvision's networks with the ImageNet stem, also for small images, and standard BatchNorm, whose
statistics stay with the client. In both points they differ from `backbones`, the shared models of
other papers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from torch import nn

from fedapp.core.errors import UserError, unknown
from fedapp.models.backbones import check_memory, relu
from fedapp.models.mixer import WIDTH, Mixer
from fedapp.models.quick_layers import use_quick_layers

FeatureMap = Literal["pool", "linear"]

_NO_PADDING_FROM = 16  # pixels: two unpadded 5x5 convolutions with pooling need as many
_STAGES = (64, 128, 256, 512)


@dataclass(frozen=True)
class Architecture:
    """One row: builds an extractor with `width` features from (channels, image size)."""

    build: Callable[[int, int], nn.Module]
    width: int
    smallest: int = 8  # side in pixels of the smallest images that the layers leave a pixel of


def build_heterogeneous_extractor(
    name: str, channels: int, image_size: int, feature_dim: int, feature_map: FeatureMap = "pool"
) -> nn.Module:
    """Build an extractor, initialised from torch's global generator.

    Args:
        name: a key of `ARCHITECTURES`.
        channels: of the images, 1 or 3.
        image_size: side of the square images in pixels, `smallest` or more.
        feature_dim: K, the number of features of all clients of the federation.
        feature_map: "pool" averages or repeats neighbouring native features without parameters, as
            FedDOR's code lineage does; "linear" is a linear layer without activation.

    Returns:
        A module that maps float32 [B, channels, H, W] to features [B, K].

    Raises:
        UserError: unknown name, images that are too small, or a model that is too large.
    """
    check_architecture(name, image_size)
    row = ARCHITECTURES[name]
    check_memory(name, image_size, partial(row.build, channels, image_size))
    extractor = row.build(channels, image_size)
    use_quick_layers(extractor)
    return nn.Sequential(extractor, _feature_map(feature_map, row.width, feature_dim))


def check_architecture(name: str, image_size: int) -> None:
    """Raise UserError for an unknown name, or for images that are too small for the network."""
    if name not in ARCHITECTURES:
        raise unknown("architecture", name, ARCHITECTURES)
    side = ARCHITECTURES[name].smallest
    if image_size < side:
        raise UserError(
            f"architecture '{name}' needs images of {side}x{side} pixels or more, not "
            f"{image_size} wide"
        )


def _feature_map(kind: FeatureMap, width: int, feature_dim: int) -> nn.Module:
    if kind == "linear":
        return nn.Linear(width, feature_dim)
    # Takes [B, n] as one unbatched signal of B channels: the mean over neighbouring features.
    return nn.Identity() if width == feature_dim else nn.AdaptiveAvgPool1d(feature_dim)


def _fedavgcnn(channels: int, image_size: int) -> nn.Module:
    """Two 5x5 convolutions without padding and one hidden layer of 512 units.

    Images below 16 pixels, which no paper uses with it, are padded so that a pixel remains.
    """
    padding = 0 if image_size >= _NO_PADDING_FROM else 2
    side = image_size
    for _ in range(2):
        side = (side + 2 * padding - 4) // 2
    return nn.Sequential(
        nn.Conv2d(channels, 32, 5, padding=padding), nn.MaxPool2d(2), relu(),
        nn.Conv2d(32, 64, 5, padding=padding), nn.MaxPool2d(2), relu(),
        nn.Flatten(), nn.Linear(64 * side * side, 512), relu(),
    )  # fmt: skip


def _short_resnet(stages: int, channels: int, image_size: int) -> nn.Module:
    """One basic block (torchvision's) in each of the first stages, after the ImageNet stem."""
    from torchvision.models.resnet import BasicBlock

    layers: list[nn.Module] = [
        nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(64),
        nn.MaxPool2d(3, stride=2, padding=1), relu(),
    ]  # fmt: skip
    width = 64
    for outputs in _STAGES[:stages]:
        stride = 1 if outputs == width else 2
        shortcut = None
        if stride != 1:
            projection = nn.Conv2d(width, outputs, 1, stride=stride, bias=False)
            shortcut = nn.Sequential(projection, nn.BatchNorm2d(outputs))
        layers.append(BasicBlock(width, outputs, stride, shortcut))
        width = outputs
    network = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return network


def _resnet(name: str, channels: int, image_size: int) -> nn.Module:
    """torchvision's ResNet of this name, without its classifier."""
    from torchvision.models import get_model

    network: Any = get_model(name, weights=None)
    network.fc = nn.Identity()
    if channels != 3:
        network.conv1 = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
        nn.init.kaiming_normal_(network.conv1.weight, mode="fan_out", nonlinearity="relu")
    return network


def _googlenet(channels: int, image_size: int) -> nn.Module:
    """torchvision's GoogLeNet without auxiliary heads, with its dropout of 0.2."""
    from torchvision.models import googlenet

    network = googlenet(
        weights=None, aux_logits=False, transform_input=False, init_weights=True, num_classes=1
    )
    network.fc = nn.Identity()
    if channels != 3:
        stem = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
        nn.init.trunc_normal_(stem.weight, mean=0.0, std=0.01, a=-2, b=2)
        network.conv1.conv = stem
    return network


def _mobilenetv2(width: float, channels: int, image_size: int) -> nn.Module:
    """torchvision's MobileNetV2, with its dropout of 0.2 on the 1280 features."""
    from torchvision.models import mobilenet_v2

    network: Any = mobilenet_v2(weights=None, width_mult=width)
    network.classifier = nn.Dropout(0.2)
    if channels != 3:
        outputs = network.features[0][0].out_channels
        stem = nn.Conv2d(channels, outputs, 3, stride=2, padding=1, bias=False)
        nn.init.kaiming_normal_(stem.weight, mode="fan_out")
        network.features[0][0] = stem
    return network


ARCHITECTURES: dict[str, Architecture] = {
    "fedavgcnn": Architecture(_fedavgcnn, 512),
    "resnet4": Architecture(partial(_short_resnet, 1), 64),
    "resnet6": Architecture(partial(_short_resnet, 2), 128),
    "resnet8": Architecture(partial(_short_resnet, 3), 256),
    "resnet10": Architecture(partial(_short_resnet, 4), 512),
    "resnet18": Architecture(partial(_resnet, "resnet18"), 512),
    "resnet34": Architecture(partial(_resnet, "resnet34"), 512),
    "resnet50": Architecture(partial(_resnet, "resnet50"), 2048),
    "resnet101": Architecture(partial(_resnet, "resnet101"), 2048),
    "resnet152": Architecture(partial(_resnet, "resnet152"), 2048),
    "googlenet": Architecture(_googlenet, 1024, smallest=15),
    "mobilenetv2": Architecture(partial(_mobilenetv2, 1.0), 1280),
    # from no paper, for the group `small`
    "mobilenetv2-quarter": Architecture(partial(_mobilenetv2, 0.25), 1280),
    "mixer": Architecture(Mixer, WIDTH),
}
