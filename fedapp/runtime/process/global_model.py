"""The model that all clients of a run share: with its initial weights, or with its final ones."""

from pathlib import Path

import numpy as np
import torch
from torch import nn

from fedapp.config.run_config import RunConfig
from fedapp.core.arrays import Arrays
from fedapp.core.errors import UserError
from fedapp.core.rng import Stream, torch_seed
from fedapp.data.image_format import ImageFormat
from fedapp.methods.table import find_method
from fedapp.models.model import Model, build_model
from fedapp.results.final_model import model_file, not_its_model, read_model
from fedapp.results.run_directory import RunDirectory
from fedapp.results.which_model import FINAL


def build_global_model(
    config: RunConfig, images: ImageFormat, device: torch.device, draw: int = 0
) -> Model:
    """Build the network of a resolved configuration for images of this form.

    Its weights depend on the run's seed and the draw. Draw 0 is that of the global model.
    """
    head, values = find_method(config.method).head, config.flat()
    seed = torch_seed(config.seed, Stream.MODEL, draw) if draw else config.seed
    return build_model(
        config.model, head.kind(values), images.channels, images.side, len(images.classes),
        seed, config.bn, device, head.logit_scale(values), config.bottleneck,
        config.bottleneck_layers,
    )  # fmt: skip


def check_global_model(method: str) -> None:
    """Raise UserError for a method that gives personal models and no global model."""
    row = find_method(method)
    if not row.has_global_model:
        kept = "train with keep-state=true, " if row.exchange.keeps else ""
        raise UserError(
            f"the clients of method '{method}' have models of their own: {kept}write them with "
            "`fedapp personalise RUN --export FOLDER`, and use one with --personal of "
            "`fedapp classify`, `fedapp test` or `fedapp export`"
        )


def load_weights(model: nn.Module, run: RunDirectory, which: str = FINAL) -> None:
    """Load a model of a run; raises UserError if there is none, or it does not fit."""
    load_arrays_of(model, read_model(run, which), model_file(run, which))


def load_arrays_of(model: nn.Module, arrays: Arrays, file: Path) -> None:
    """Load the arrays of a file into a model; raises UserError if they do not fit."""
    if broken := [name for name, array in arrays.items() if not np.isfinite(array).all()]:
        raise not_its_model(file, f"'{broken[0]}' has values that are not finite")
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        raise not_its_model(file, str(error).splitlines()[-1].strip()) from None
