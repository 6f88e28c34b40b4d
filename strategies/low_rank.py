"""FedKD's compression: matrices as truncated singular value decompositions.

Server and clients both compress, so the app passes this codec to both. The decompressed matrix has
at least the requested share of the matrix's energy. A matrix that would not get smaller is sent
uncompressed.
Source: Wu et al., Nature Communications 2022, dynamic gradient approximation.
"""

from collections.abc import Mapping
from dataclasses import dataclass

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

    def energy(self, server_round: int) -> float:
        """Return T = start + (end - start) r / R of a round counted from 1 (r from 0)."""
        return self.start + (self.end - self.start) * (server_round - 1) / self.rounds

    def compress(self, arrays: Mapping[str, np.ndarray], server_round: int) -> Arrays:
        """Return the arrays, some as "name.u" [m, k], "name.s" [k] and "name.v" [k, n]."""
        compressed: Arrays = {}
        with one_thread():
            for name, array in arrays.items():
                compressed |= _compressed(name, array, self.energy(server_round))
        return compressed

    @staticmethod
    def decompress(arrays: Mapping[str, np.ndarray], shapes: Mapping[str, np.ndarray]) -> Arrays:
        """Return arrays named and shaped as in `shapes`; raises ValueError if parts do not fit."""
        uncompressed = {name for name in shapes if name in arrays}
        parts = {name + part for name in shapes.keys() - uncompressed for part in _PARTS}
        if arrays.keys() != uncompressed | parts:
            unmatched = sorted(arrays.keys() ^ (uncompressed | parts))[0]
            raise ValueError(f"'{unmatched}' is missing or unexpected")
        return {
            name: arrays[name] if name in uncompressed else _product(arrays, name, array.shape)
            for name, array in shapes.items()
        }


def rank(values: np.ndarray, energy: float) -> int:
    """Return the smallest k >= 1 whose k largest singular values have this share of the energy."""
    squares = np.square(values.astype(np.float64))
    shares = np.cumsum(squares) / squares.sum()
    return min(int(np.searchsorted(shares, energy - 1e-12)) + 1, len(values))


def _compressed(name: str, array: np.ndarray, energy: float) -> Arrays:
    if array.ndim < 2 or not array.any() or not np.isfinite(array).all():
        return {name: array}
    matrix = np.ascontiguousarray(array.reshape(len(array), -1), np.float32)
    left, values, right = (
        part.numpy() for part in torch.linalg.svd(torch.from_numpy(matrix), full_matrices=False)
    )
    k = rank(values, energy)
    rows, columns = matrix.shape
    if k * (rows + columns + 1) >= rows * columns:
        return {name: array}
    parts = (left[:, :k], values[:k], right[:k])
    return {name + part: np.ascontiguousarray(a) for part, a in zip(_PARTS, parts, strict=True)}


def _product(arrays: Mapping[str, np.ndarray], name: str, shape: tuple[int, ...]) -> np.ndarray:
    left, values, right = (arrays[name + part] for part in _PARTS)
    k = len(values) if values.ndim == 1 else -1
    columns = int(np.prod(shape[1:]))
    if left.shape != (shape[0], k) or right.shape != (k, columns):
        raise ValueError(f"the factors of '{name}' do not give an array of shape {shape}")
    with one_thread():
        product = torch.from_numpy(left * values) @ torch.from_numpy(right)
    return product.numpy().reshape(shape)
