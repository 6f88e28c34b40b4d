"""Heads: the layers from features to logits, and the fixed geometries that methods freeze.

A frozen head is never sent: server and clients rebuild it from a seed, possibly on different
machines and with different thread counts. The constructions here are therefore reproducible bit for
bit: they use element-wise arithmetic in a fixed order, because LAPACK's last bits depend on threads
and build.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedapp.core.errors import UserError, unknown


def simplex_etf(num_classes: int, feature_dim: int, seed: int) -> Tensor:
    """Return a random simplex equiangular tight frame [C, d], float32, one row per class.

    Rows have norm 1, pairwise cosine -1/(C-1) and sum 0. Needs d >= C-1; at d = C-1 the frame is
    built in the C-1 dimensions of R^C that it spans. Raises UserError for a smaller d or C < 2.
    Source: Papyan et al., PNAS 2020, definition of the simplex ETF; Yang et al., NeurIPS 2022.
    """
    if num_classes < 2 or feature_dim < num_classes - 1:
        raise UserError(
            f"a simplex ETF head of {num_classes} classes on {feature_dim} features does not exist;"
            " it takes at least 2 classes and at least as many features as classes minus one."
        )
    if feature_dim >= num_classes:
        basis = _orthonormal_columns(_gaussian(feature_dim, num_classes, seed))
    else:
        # Centred columns span the complement of the all-ones vector: the span of the frame itself.
        gaussian = _gaussian(num_classes, feature_dim, seed)
        basis = _orthonormal_columns(gaussian - _column_sums(gaussian) / num_classes).T
    return simplex_etf_from_basis(basis).float()


def simplex_etf_from_basis(basis: Tensor) -> Tensor:
    """Return sqrt(C/(C-1)) (U (I - 11^T/C))^T, [C, d], for a basis U [d, C] with U^T U = I."""
    num_classes = basis.shape[1]
    rows = basis.T.contiguous()
    return math.sqrt(num_classes / (num_classes - 1)) * (rows - _column_sums(rows) / num_classes)


def orthonormal(num_classes: int, feature_dim: int, seed: int) -> Tensor:
    """Return random orthonormal rows [C, d], float32. Raises UserError if d < C.

    The rows are the Q factor of a Gaussian d x C matrix whose R has a positive diagonal.
    Source: SphereFed (Dong et al., ECCV 2022), the fixed orthogonal classifier.
    """
    if feature_dim < num_classes:
        raise UserError(
            f"an orthonormal head of {num_classes} classes on {feature_dim} features does not"
            " exist; it takes at least as many features as classes."
        )
    return _orthonormal_columns(_gaussian(feature_dim, num_classes, seed)).T.contiguous().float()


class Head(nn.Module):
    """A classifier of features: z = scale (W f + b), or scale (W norm(f) + b) if `normalise`.

    With `normalise_rows` the rows of W are normalised as well, in the forward pass only, so that
    training may change the lengths of the stored ones: z = scale cos(W, f) without a bias.

    `weight` is a parameter [C, d]; `bias` one of [C] or None; `scale` a learnable scalar parameter
    or a fixed number. norm(f) = f / max(||f||, 1e-12), inside the graph.
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        normalise: bool = False,
        normalise_rows: bool = False,
        frozen: bool = False,
        scale: float = 1.0,
        learn_scale: bool = False,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=not frozen)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=not frozen)
        self.normalise, self.normalise_rows = normalise, normalise_rows
        self.scale = nn.Parameter(torch.tensor(scale, dtype=weight.dtype)) if learn_scale else scale

    @property
    def frozen(self) -> bool:
        """Whether the weight is fixed; `requires_grad_(True)` unfreezes a head for fine-tuning."""
        return not self.weight.requires_grad

    def forward(self, features: Tensor) -> Tensor:
        """Map features [B, d] to logits [B, C]."""
        if self.normalise:
            features = F.normalize(features, dim=1, eps=1e-12)
        rows = F.normalize(self.weight, dim=1, eps=1e-12) if self.normalise_rows else self.weight
        logits = F.linear(features, rows, self.bias)
        if not isinstance(self.scale, nn.Parameter) and self.scale == 1:
            return logits
        return self.scale * logits

    def extra_repr(self) -> str:
        """Return the head's description for PyTorch's printout of a model."""
        num_classes, feature_dim = self.weight.shape
        return f"{feature_dim} -> {num_classes}, normalise={self.normalise}, frozen={self.frozen}"


Init = Callable[[int, int, int], tuple[Tensor, Tensor | None]]


@dataclass(frozen=True)
class HeadKind:
    """The initialisation of one kind of head, and which parts of it are trained."""

    init: Init  # (num_classes, feature_dim, seed) -> weight [C, d] and bias [C] or None
    bias: bool = False
    normalise: bool = False
    normalise_rows: bool = False
    frozen: bool = True
    learn_scale: bool = False
    fewer_than_classes: int | None = None  # allowed number of features below C; None: any

    def fewest_features(self, num_classes: int) -> int:
        """Return the least number of features for a head of this kind."""
        return 1 if self.fewer_than_classes is None else num_classes - self.fewer_than_classes


def _linear_init(num_classes: int, feature_dim: int, seed: int) -> tuple[Tensor, Tensor]:
    """Draw weight and bias as nn.Linear does by default, uniform in +-1/sqrt(d)."""
    draws = torch.rand(
        num_classes * (feature_dim + 1),
        generator=torch.Generator().manual_seed(seed),
        dtype=torch.float64,
    )
    values = ((2 * draws - 1) / math.sqrt(feature_dim)).float()
    weight, bias = values.split((num_classes * feature_dim, num_classes))
    return weight.reshape(num_classes, feature_dim).clone(), bias.clone()


def _orthonormal_init(num_classes: int, feature_dim: int, seed: int) -> tuple[Tensor, None]:
    return orthonormal(num_classes, feature_dim, seed), None


def _etf_init(num_classes: int, feature_dim: int, seed: int) -> tuple[Tensor, None]:
    return simplex_etf(num_classes, feature_dim, seed), None


HEADS: dict[str, HeadKind] = {
    "linear": HeadKind(_linear_init, bias=True, frozen=False),
    "frozen-random": HeadKind(_linear_init, bias=True),  # stays at its initial values
    "orthonormal": HeadKind(_orthonormal_init, normalise=True, fewer_than_classes=0),
    "etf": HeadKind(_etf_init, fewer_than_classes=1),
    "etf-scaled": HeadKind(_etf_init, normalise=True, learn_scale=True, fewer_than_classes=1),
    "normalised-linear": HeadKind(_linear_init, normalise=True, frozen=False),
    "cosine": HeadKind(
        _linear_init, normalise=True, normalise_rows=True, frozen=False, learn_scale=True
    ),
}


def find_kind(name: str) -> HeadKind:
    """Return the head of a name; raises UserError for an unknown one."""
    if name not in HEADS:
        raise unknown("head", name, HEADS)
    return HEADS[name]


def build_head(
    kind: str | HeadKind, feature_dim: int, num_classes: int, seed: int, *, scale: float = 1.0
) -> Head:
    """Build a head from a name in HEADS or a `HeadKind`; its values depend on sizes and seed only.

    `scale` multiplies the logits, or is the initial value of a learnable scale. The global random
    state does not change. Raises UserError for an unknown kind, or for sizes without such a
    geometry.
    """
    choice = find_kind(kind) if isinstance(kind, str) else kind
    return Head(**head_arguments(choice, feature_dim, num_classes, seed, scale))


def head_arguments(
    kind: HeadKind, feature_dim: int, num_classes: int, seed: int, scale: float
) -> dict[str, Any]:
    """Return the arguments of a `Head` of this kind, with its initial values."""
    weight, bias = kind.init(num_classes, feature_dim, seed)
    return {
        "weight": weight,
        "bias": bias if kind.bias else None,
        "normalise": kind.normalise,
        "normalise_rows": kind.normalise_rows,
        "frozen": kind.frozen,
        "scale": scale,
        "learn_scale": kind.learn_scale,
    }


def _gaussian(rows: int, columns: int, seed: int) -> Tensor:
    """Draw a standard normal matrix [rows, columns] in float64."""
    generator = torch.Generator().manual_seed(seed)
    draws = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    return draws.float().double()  # last bits depend on the C library


def _orthonormal_columns(matrix: Tensor) -> Tensor:
    """Return Q [n, k] of the QR decomposition with diag(R) > 0, by modified Gram-Schmidt."""
    columns = matrix.clone()
    for index in range(columns.shape[1]):
        unit, rest = columns[:, index : index + 1], columns[:, index + 1 :]
        unit /= _column_sums(unit * unit).sqrt()
        rest -= unit * _column_sums(unit * rest)
    return columns


def _column_sums(matrix: Tensor) -> Tensor:
    """Sum over rows, [n, k] -> [k], in a fixed order: add the two halves repeatedly."""
    while (count := matrix.shape[0]) > 1:
        half = count // 2
        folded = matrix[:half] + matrix[half : 2 * half]
        matrix = torch.cat((folded, matrix[2 * half :])) if count % 2 else folded
    return matrix[0]
