"""Heads of heterogeneous models: linear or cosine, some behind a hidden layer (HtC4).

Prototype methods send no heads, so clients may have different ones. They share only the
classifier's initial rows: FedDOR initialises it with the orthogonal rows that are also the first
global prototypes.
"""

from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from fedapp.core.rng import seeded
from fedapp.models.heads import HEADS, Head, HeadKind, head_arguments

# Logits of features f and rows θ: θ f + b, s cos(f, θ), and s θ norm(f), with a learnable s.
STYLES: dict[str, HeadKind] = {
    "linear": HEADS["linear"],
    "cosine": HEADS["cosine"],
    "normalised-linear": replace(HEADS["normalised-linear"], learn_scale=True),
}


class HeterogeneousHead(Head):
    """A classifier [C, h] behind an optional hidden layer K -> h with ReLU.

    `final_relu` adds a ReLU after the logits, as HtFLlib's code of HtC4 does.
    """

    def __init__(self, hidden: nn.Linear | None, final_relu: bool, **classifier: Any) -> None:
        super().__init__(**classifier)
        self.hidden, self.final_relu = hidden, final_relu

    def forward(self, features: Tensor) -> Tensor:
        """Map features [B, K] to logits [B, C]."""
        if self.hidden is not None:
            features = F.relu(self.hidden(features))
        logits = super().forward(features)
        return F.relu(logits) if self.final_relu else logits


def build_heterogeneous_head(
    style: str,
    feature_dim: int,
    num_classes: int,
    seed: int,
    *,
    hidden: int = 0,
    scale: float = 10.0,
    final_relu: bool = False,
) -> HeterogeneousHead:
    """Build a head [K] -> [C] whose initial values depend only on its sizes and the seed.

    Args:
        style: a key of `STYLES`.
        feature_dim: K.
        num_classes: C.
        seed: of all initial values; two heads of the same sizes have the same initial values.
        hidden: width of the hidden layer; 0 for none.
        scale: the initial value of a learnable scale.
        final_relu: set negative logits to zero.
    """
    with seeded(seed + 1):  # of another stream than the classifier's
        layer = nn.Linear(feature_dim, hidden) if hidden else None
    kind = STYLES[style]
    factor = scale if kind.learn_scale else 1.0
    classifier = head_arguments(kind, hidden or feature_dim, num_classes, seed, factor)
    return HeterogeneousHead(layer, final_relu, **classifier)
