"""Conversion between named tensors and the named arrays that clients store and send."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from clients.arrays import Arrays


def floating(model: nn.Module) -> dict[str, Tensor]:
    """Return a model's floating parameters and buffers by name; counters are left out."""
    tensors = model.state_dict(keep_vars=True)
    return {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()}


def to_arrays(tensors: Mapping[str, Tensor]) -> Arrays:
    """Copy tensors to arrays on the CPU."""
    return {name: tensor.detach().cpu().numpy().copy() for name, tensor in tensors.items()}


@torch.no_grad()
def load_arrays(tensors: Mapping[str, Tensor], arrays: Mapping[str, np.ndarray]) -> None:
    """Copy arrays into the tensors of the same names, in place; KeyError if one is missing."""
    for name, tensor in tensors.items():
        tensor.copy_(torch.from_numpy(arrays[name]))
