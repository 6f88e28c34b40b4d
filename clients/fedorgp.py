"""FedORGP's client: features drawn to prototypes by cosine (Guo et al. 2025, arXiv 2502.16119)."""

from typing import Any

from torch import Tensor

from clients.prototype_client import PrototypeClient
from clients.training.objective import Step


class FedORGPClient(PrototypeClient):
    """CE + λ (1/B) sum of 1 - cos(f, P^y); with `reduction` "sum", without 1/B."""

    def __init__(self, *args: Any, reduction: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.reduction = reduction

    def pull(self, step: Step) -> Tensor:
        """Return the distance of a batch's features to the prototypes of its classes."""
        mean = super().pull(step)
        return len(step.labels) * mean if self.reduction == "sum" else mean
