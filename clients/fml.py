"""The client of FML (Shen et al. 2020): mutual distillation between its model and a shared one."""

from typing import Any

from torch import Tensor

from clients.pair import PairClient
from clients.prototype_losses import mutual


class FMLClient(PairClient):
    """Mutual learning with an averaged meme model (Shen et al. 2020, arXiv 2006.16765)."""

    def __init__(
        self, *args: Any, alpha: float, beta: float, kl: str, detach: bool, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.alpha, self.beta = alpha, beta
        self.per_element, self.detach = kl == "mean", detach

    def losses(self, features: Tensor, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return both losses of `mutual`."""
        pair: Any = self.model
        return mutual(
            logits, pair.seen[1], labels, self.alpha, self.beta, self.per_element, self.detach
        )
