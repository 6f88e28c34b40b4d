"""Named tensors, and the named arrays that clients store and send: conversion and sizes."""

from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from clients.arrays import Arrays

_CHUNK = 1 << 13  # values per step of a long sum


def floating(model: nn.Module) -> dict[str, Tensor]:
    """Return a model's floating parameters and buffers by name; counters are left out."""
    tensors = model.state_dict(keep_vars=True)
    return {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()}


def to_arrays(tensors: Mapping[str, Tensor]) -> Arrays:
    """Copy tensors, on any device and in any layout, to arrays in C order."""
    return {name: _copied(tensor).numpy() for name, tensor in tensors.items()}


def _copied(tensor: Tensor) -> Tensor:
    """Return a copy on the CPU: one copy, not one from the device and one into C order."""
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


@torch.no_grad()
def load_arrays(tensors: Mapping[str, Tensor], arrays: Mapping[str, np.ndarray]) -> None:
    """Copy arrays into the tensors of the same names, in place; KeyError if one is missing.

    NumPy's arithmetic on arrays without dimensions gives numbers, which are copied too.
    """
    for name, tensor in tensors.items():
        tensor.copy_(torch.from_numpy(np.asarray(arrays[name])))


def nbytes(tensors: Iterable[Tensor]) -> int:
    """Return how many bytes tensors take together."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def squared_distance(one: np.ndarray, other: np.ndarray) -> float:
    """Return the sum of (one - other)^2 of float32 arrays, relative error below 1e-6.

    Differences and squares are float32, sums of the pieces float64. The pieces stay in the cache,
    and are so short that NumPy's BLAS uses one thread for them.
    """
    left, right, total = one.reshape(-1), other.reshape(-1), 0.0
    differences = np.empty(min(_CHUNK, left.size), np.float32)
    for start in range(0, left.size, _CHUNK):
        ends = slice(start, start + _CHUNK)
        piece = differences[: len(left[ends])]
        np.subtract(left[ends], right[ends], out=piece)
        total += float(np.dot(piece, piece))
    return total


def total_distance(one: Arrays, other: Arrays, names: Iterable[str]) -> float:
    """Return the sum of `squared_distance` over the arrays of these names."""
    with np.errstate(over="ignore", invalid="ignore"):  # of a model that is not finite
        return sum(squared_distance(one[name], other[name]) for name in names)
