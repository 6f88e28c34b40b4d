"""FedTGP's server: trains one prototype per class with an adaptive margin."""

from typing import Any

import torch

from strategies.prototypes.rounds import TrainedPrototypes
from strategies.prototypes.training import adaptive_margin, margin_cross_entropy
from strategies.prototypes.uploads import Table, Upload, class_means


class FedTGP(TrainedPrototypes):
    """Prototypes separated by a margin from the clients' prototypes (Zhang et al., AAAI 2024)."""

    def __init__(self, *args: Any, rule: str, largest_margin: float, **kwargs: Any) -> None:
        """Prepare; `rule` and `largest_margin` as in `adaptive_margin`."""
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
