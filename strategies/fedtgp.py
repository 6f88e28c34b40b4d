"""FedTGP and FedORGP: servers that train one prototype per class and send it as it comes out."""

from typing import Any

import torch

from strategies.prototype_rounds import TrainedPrototypes
from strategies.prototypes import Table, Upload, class_means
from strategies.server_training import adaptive_margin, intra_inter, margin_cross_entropy


class FedTGP(TrainedPrototypes):
    """Prototypes separated by a margin that follows the clients' (Zhang et al., AAAI 2024)."""

    def __init__(
        self, *args: Any, rule: str = "maxmin", largest_margin: float = 100.0, **kwargs: Any
    ) -> None:
        """Prepare; `rule` and `largest_margin` as `adaptive_margin` takes them."""
        super().__init__(*args, **kwargs)
        self.rule, self.largest_margin = rule, largest_margin
        self.margin = largest_margin

    def update(self, uploads: list[Upload]) -> Table:
        """Train with the margin of this round's uploads."""
        self.margin = adaptive_margin(class_means(uploads).rows, self.largest_margin, self.rule)
        return super().update(uploads)

    def loss(self, prototypes: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the contrastive loss of a batch."""
        return margin_cross_entropy(prototypes, labels, self.maker(), self.margin)


class FedORGP(TrainedPrototypes):
    """L_intra + γ L_inter (Guo et al. 2025, arXiv 2502.16119).

    With `reduction` "sum", as the first version of the authors' code, both are sums over the batch,
    and L_inter over the other classes too.
    """

    def __init__(
        self, *args: Any, gamma: float = 10.0, reduction: str = "mean", **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.gamma, self.reduction = gamma, reduction

    def loss(self, prototypes: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return L_intra + γ L_inter of a batch."""
        intra, inter = intra_inter(prototypes, labels, self.maker())
        if self.reduction == "sum":
            intra, inter = len(labels) * intra, len(labels) * (self.num_classes - 1) * inter
        return intra + self.gamma * inter
