"""FedProto's client, which is also FedTGP's but for the counts."""

from typing import Any

from torch import Tensor

from clients.objective import Step
from clients.prototype_client import PrototypeClient
from clients.prototype_losses import prototype_mse


class FedTGPClient(PrototypeClient):
    """CE + λ MSE(f, P^y); a test image gets the class of the nearest prototype.

    Source: FedTGP (Zhang et al., AAAI 2024), the client's loss.
    """

    by_prototype = True
    cosine = False

    def pull(self, step: Step) -> Tensor:
        """Return the squared distance of a batch's features to the prototypes of its classes."""
        return prototype_mse(step.features, step.labels, self.prototypes, self.known)


class FedProtoClient(FedTGPClient):
    """The same, with the numbers of images if the server weighs by them (FedProto, equation 6)."""

    def __init__(self, *args: Any, weighting: str = "count", **kwargs: Any) -> None:
        """Prepare a client; `weighting` is "count" or "uniform", for which counts stay away."""
        super().__init__(*args, **kwargs)
        self.counted = weighting == "count"
