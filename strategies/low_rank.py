"""FedKD's compression: matrices as truncated singular value decompositions.

Server and clients both compress, so the app passes this codec to both. The decompressed matrix has
at least the requested share of the matrix's energy. A matrix that would not get smaller is sent
uncompressed. `truncation="htfllib"` is what HtFLlib's code does, and FedORGP's, which builds on it.
Source: Wu et al., Nature Communications 2022, dynamic gradient approximation.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from strategies.aggregate import Arrays
from strategies.threads import one_thread

_PARTS = (".u", ".s", ".v")


@dataclass(frozen=True)
class LowRank:
    """Compresses named float32 arrays with an energy that grows over the rounds."""

    start: float  # T of the first round, in (0, 1]
    end: float  # the limit of T after the last round
    rounds: int
    truncation: Literal["if-smaller", "htfllib"] = "if-smaller"

    def energy(self, server_round: int) -> float:
        """Return T = start + (end - start) r / R of a round counted from 1 (r from 0)."""
        return self.start + (self.end - self.start) * (server_round - 1) / self.rounds

    def compress(self, arrays: Mapping[str, np.ndarray], server_round: int) -> Arrays:
        """Return the arrays, some as "name.u" [m, k], "name.s" [k] and "name.v" [k, n]."""
        compressed: Arrays = {}
        truncated = _truncated if self.truncation == "htfllib" else _compressed
        with one_thread():
            for name, array in arrays.items():
                compressed |= truncated(name, array, self.energy(server_round))
        return compressed

    def decompress(
        self, arrays: Mapping[str, np.ndarray], shapes: Mapping[str, np.ndarray]
    ) -> Arrays:
        """Return arrays named and shaped as in `shapes`; raises ValueError if parts do not fit."""
        uncompressed = {name for name in shapes if name in arrays}
        parts = {name + part for name in shapes.keys() - uncompressed for part in _PARTS}
        if arrays.keys() != uncompressed | parts:
            unmatched = sorted(arrays.keys() ^ (uncompressed | parts))[0]
            raise ValueError(f"'{unmatched}' is missing or unexpected")
        return {
            name: arrays[name] if name in uncompressed else self._product(arrays, name, array.shape)
            for name, array in shapes.items()
        }

    def _product(
        self, arrays: Mapping[str, np.ndarray], name: str, shape: tuple[int, ...]
    ) -> np.ndarray:
        left, values, right = (arrays[name + part] for part in _PARTS)
        by_kernel = self.truncation == "htfllib"
        *many, rows, columns = shape if by_kernel else (shape[0], int(np.prod(shape[1:])))
        k = values.shape[-1] if values.ndim else -1
        expected = ((*many, rows, k), (*many, k), (*many, k, columns))
        if (left.shape, values.shape, right.shape) != expected:
            raise ValueError(f"the factors of '{name}' do not give an array of shape {shape}")
        with one_thread():
            product = torch.from_numpy(left * values[..., None, :]) @ torch.from_numpy(right)
        return product.numpy().reshape(shape)


def rank(values: np.ndarray, energy: float) -> int:
    """Return the smallest k >= 1 whose k largest singular values have this share of the energy."""
    squares = np.square(values.astype(np.float64))
    shares = np.cumsum(squares) / squares.sum()
    return min(int(np.searchsorted(shares, energy - 1e-12)) + 1, len(values))


def _compressed(name: str, array: np.ndarray, energy: float) -> Arrays:
    if array.ndim < 2 or not array.any() or not np.isfinite(array).all():
        return {name: array}
    matrix = array.reshape(len(array), -1)
    left, values, right = _factors(matrix)
    k = rank(values, energy)
    rows, columns = matrix.shape
    if k * (rows + columns + 1) >= rows * columns:
        return {name: array}
    return _named(name, left[:, :k], values[:k], right[:k])


def _truncated(name: str, array: np.ndarray, energy: float) -> Arrays:
    """Truncate every matrix, and a convolution kernel by kernel, as HtFLlib's code does.

    All kernels of a layer keep the same number k of singular values: the smallest with more than
    this share of the layer's energy. If only all of them have it, k is 0 and the layer becomes
    zero, which happens to small layers near their random start. HtFLlib 0fd26c5, clientkd.py.
    """
    if array.ndim < 2 or len(array) == 1 or not array.any() or not np.isfinite(array).all():
        return {name: array}
    left, values, right = _factors(array)
    squares = np.square(values.astype(np.float64)).reshape(-1, values.shape[-1]).sum(axis=0)
    enough = np.flatnonzero(np.cumsum(squares)[:-1] > energy * squares.sum())
    k = int(enough[0]) + 1 if len(enough) else 0
    return _named(name, left[..., :k], values[..., :k], right[..., :k, :])


def _factors(matrices: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the singular value decompositions of the matrices [..., m, n]."""
    given = torch.from_numpy(np.ascontiguousarray(matrices, np.float32))
    left, values, right = torch.linalg.svd(given, full_matrices=False)
    return left.numpy(), values.numpy(), right.numpy()


def _named(name: str, *parts: np.ndarray) -> Arrays:
    return {name + part: np.ascontiguousarray(a) for part, a in zip(_PARTS, parts, strict=True)}
