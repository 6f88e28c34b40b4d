"""The model that all clients of a run share, with its initial weights."""

import torch

from fedapp.config.run_config import RunConfig
from fedapp.data.image_format import ImageFormat
from fedapp.methods.table import find_method
from fedapp.models.model import Model, build_model


def build_global_model(config: RunConfig, images: ImageFormat, device: torch.device) -> Model:
    """Build the network of a resolved configuration for images of this form."""
    head, values = find_method(config.method).head, config.flat()
    return build_model(
        config.model, head.kind(values), images.channels, images.side, len(images.classes),
        config.seed, config.bn, device, head.logit_scale(values), config.bottleneck,
        config.bottleneck_layers,
    )  # fmt: skip
