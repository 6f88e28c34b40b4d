"""Heads of personal models: linear or cosine classifiers, some behind a hidden layer (HtC4).

Prototype methods send no heads, so clients may have different ones. They share only the
classifier's initial rows: FedDOR initialises it with the orthogonal rows that are also the first
global prototypes.
"""

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional as F

from fedapp.core.rng import seeded
from fedapp.models.heads import Head, build_head


@dataclass(frozen=True)
class HeadStyle:
    """How a classifier computes logits from features f and its rows θ.

    linear: θ f + b. cosine: s cos(f, θ). normalised-linear: s θ norm(f). The scale s is learnable.
    """

    normalise_features: bool = False
    normalise_rows: bool = False
    scaled: bool = False
    bias: bool = True


STYLES: dict[str, HeadStyle] = {
    "linear": HeadStyle(),
    "cosine": HeadStyle(True, True, True, False),
    "normalised-linear": HeadStyle(True, False, True, False),
}


class PersonalHead(Head):
    """A classifier [C, h] behind an optional hidden layer K -> h with ReLU.

    `final_relu` adds a ReLU after the logits, as HtFLlib's code of HtC4 does. Rows are normalised
    in the forward pass only, so training may change the lengths of the stored ones.
    """

    def __init__(
        self,
        style: HeadStyle,
        classifier: Head,
        hidden: nn.Linear | None,
        scale: float,
        final_relu: bool = False,
    ) -> None:
        super().__init__(
            classifier.weight.detach(),
            classifier.bias.detach() if style.bias and classifier.bias is not None else None,
            normalise=style.normalise_features,
            scale=scale if style.scaled else 1.0,
            learn_scale=style.scaled,
        )
        self.hidden = hidden
        self.normalise_rows, self.final_relu = style.normalise_rows, final_relu

    def forward(self, features: Tensor) -> Tensor:
        """Map features [B, K] to logits [B, C]."""
        if self.hidden is not None:
            features = F.relu(self.hidden(features))
        logits = self._cosines(features) if self.normalise_rows else super().forward(features)
        return F.relu(logits) if self.final_relu else logits

    def _cosines(self, features: Tensor) -> Tensor:
        """Return the scaled cosines of features [B, h] and rows, [B, C]."""
        return self.scale * F.linear(
            F.normalize(features, dim=1, eps=1e-12), F.normalize(self.weight, dim=1, eps=1e-12)
        )


def build_personal_head(
    style: str,
    feature_dim: int,
    num_classes: int,
    seed: int,
    *,
    hidden: int = 0,
    scale: float = 10.0,
    final_relu: bool = False,
) -> PersonalHead:
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
    width = hidden or feature_dim
    classifier = build_head("linear", width, num_classes, seed)
    return PersonalHead(STYLES[style], classifier, layer, scale, final_relu)
