"""The client of FedProto, and of FedTGP, whose server trains the prototypes."""

from typing import Any

from torch import Tensor

from clients.prototype_client import PrototypeClient
from clients.prototype_losses import prototype_mse
from clients.training.objective import Step


class FedProtoClient(PrototypeClient):
    """CE + λ MSE(f, P^y); the prediction is the class of the nearest prototype.

    Source: FedProto (Tan et al., AAAI 2022), equations 3 to 6; FedTGP (Zhang et al., AAAI 2024),
    whose clients have the same loss and upload no counts.
    """

    by_prototype = True
    cosine = False

    def __init__(self, *args: Any, weighting: str = "uniform", **kwargs: Any) -> None:
        """Prepare a client; with the `weighting` "count" it uploads its images of each class."""
        super().__init__(*args, **kwargs)
        self.counted = weighting == "count"

    def pull(self, step: Step) -> Tensor:
        """Return the squared distance of a batch's features to the prototypes of its classes."""
        return prototype_mse(step.features, step.labels, self.prototypes, self.known)
