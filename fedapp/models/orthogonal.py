"""Orthogonal initialisation (OI): one direction per class, with maximal angles between them.

These rows initialise FedDOR's classifiers on all clients, its first global prototypes and its
server's embedding. They are never sent: every process computes them from the seed, so they must be
the same everywhere. FedDOR, equation 1. Orthonormal rows, which the paper describes, need at least
as many features as classes; with fewer the rows are as far apart as possible.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from fedapp.models.heads import orthonormal, simplex_etf
from strategies.threads import one_thread

_SHARPNESS = (10.0, 30.0, 100.0, 300.0, 1000.0)
_STEPS = 400
_SMALL = 4096  # largest C d for which several starts are compared
_STARTS = 4


def orthogonal_initialisation(
    num_classes: int,
    feature_dim: int,
    seed: int,
    *,
    simplex: bool = False,
    objective: str = "signed",
) -> Tensor:
    """Return W [C, d] float32 with unit rows; it depends only on the arguments.

    d >= C: orthonormal rows (or, with `simplex`, a simplex frame). d = C - 1: the simplex frame,
    which is optimal. d < C - 1: rows that minimise a smooth maximum of their cosines
    (`objective="signed"`) or of their absolute values ("abs", which avoids opposite pairs).
    """
    if feature_dim >= num_classes and not simplex:
        return orthonormal(num_classes, feature_dim, seed)
    if feature_dim >= num_classes - 1 and num_classes > 1:
        return simplex_etf(num_classes, feature_dim, seed)
    return separated(num_classes, feature_dim, seed, objective).float()


def separated(num_classes: int, feature_dim: int, seed: int, objective: str = "signed") -> Tensor:
    """Return unit rows [C, d] float64 spread over the sphere: the best of several starts.

    Minimises (1/β) log sum over i != j of exp(β w_i w_j) with growing β. Single-threaded, so that
    the result does not depend on the number of threads.
    """
    measure = _MEASURES[objective]
    starts = _STARTS if num_classes * feature_dim <= _SMALL else 1
    with one_thread():
        candidates = [
            _spread(_start(num_classes, feature_dim, seed + number), measure)
            for number in range(starts)
        ]
        return min(candidates, key=lambda rows: float(_largest(rows, objective)))


def _start(num_classes: int, feature_dim: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    draws = torch.randn(num_classes, feature_dim, generator=generator, dtype=torch.float64)
    return F.normalize(draws, dim=1)


def _spread(rows: Tensor, measure: Callable[[Tensor, float], Tensor]) -> Tensor:
    """Run Adam on the sphere: tangent gradients, and rows of length one after every step."""
    for sharpness in _SHARPNESS:
        first, second = torch.zeros_like(rows), torch.zeros_like(rows)
        rate = 0.05 * (10.0 / sharpness) ** 0.5
        for step in range(_STEPS):
            gradient = 2 * measure(rows @ rows.T, sharpness) @ rows
            gradient -= (gradient * rows).sum(1, keepdim=True) * rows
            first = 0.9 * first + 0.1 * gradient
            second = 0.999 * second + 0.001 * gradient.square()
            mean = first / (1 - 0.9 ** (step + 1))
            spread = (second / (1 - 0.999 ** (step + 1))).sqrt()
            rows = F.normalize(rows - rate * (1 - step / _STEPS) * mean / (spread + 1e-8), dim=1)
    return rows


def _signed(cosines: Tensor, sharpness: float) -> Tensor:
    """Return d/dcos of (1/β) log sum exp(β cos) over the pairs: the softmax over all of them."""
    exponents = (sharpness * cosines).fill_diagonal_(-torch.inf)
    return exponents.flatten().softmax(0).view_as(cosines)


def _absolute(cosines: Tensor, sharpness: float) -> Tensor:
    """As `_signed`, of (1/β) log sum (exp(β cos) + exp(-β cos))."""
    positive = (sharpness * cosines).fill_diagonal_(-torch.inf)
    negative = (-sharpness * cosines).fill_diagonal_(-torch.inf)
    weights = torch.stack((positive, negative)).flatten().softmax(0).view(2, *cosines.shape)
    return weights[0] - weights[1]


_MEASURES = {"signed": _signed, "abs": _absolute}


def _largest(rows: Tensor, objective: str) -> Tensor:
    cosines = (rows @ rows.T).fill_diagonal_(-torch.inf)
    if objective == "abs":
        cosines = cosines.abs().fill_diagonal_(-torch.inf)
    return cosines.max()
