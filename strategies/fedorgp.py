"""The strategy of FedORGP: prototypes trained with orthogonality."""

from typing import Any

import torch

from strategies.prototypes.rounds import TrainedPrototypes
from strategies.prototypes.training import intra_inter


class FedORGP(TrainedPrototypes):
    """L_intra + γ L_inter (Guo et al. 2025, arXiv 2502.16119).

    With `reduction` "sum", as in the first version of the authors' code, both are sums over the
    batch, and L_inter is also a sum over the other classes.
    """

    def __init__(self, *args: Any, gamma: float, reduction: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.gamma, self.reduction = gamma, reduction

    def loss(self, prototypes: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return L_intra + γ L_inter of a batch."""
        intra, inter = intra_inter(prototypes, labels, self.maker())
        if self.reduction == "sum":
            intra, inter = len(labels) * intra, len(labels) * (self.shape.num_classes - 1) * inter
        return intra + self.gamma * inter
