"""Conversion between named tensors and the named arrays that clients store and send."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from clients.arrays import Arrays

_CHUNK = 1 << 15  # values per step of a long sum; intermediate results fit the CPU cache


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


def squared_distance(one: np.ndarray, other: np.ndarray) -> float:
    """Return the sum of (one - other)^2, summed in float64.

    In pieces that stay in the cache it takes half the time of one expression.
    """
    left, right = one.reshape(-1), other.reshape(-1)
    squares, total = np.empty(min(_CHUNK, left.size)), 0.0
    for start in range(0, left.size, _CHUNK):
        difference = left[start : start + _CHUNK] - right[start : start + _CHUNK]
        piece = squares[: difference.size]
        np.copyto(piece, difference)
        np.multiply(piece, piece, out=piece)
        total += float(piece.sum())
    return total
