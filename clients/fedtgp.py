"""The client of FedTGP: a prototype method whose prototypes the server trains."""

from torch import Tensor

from clients.prototype_client import PrototypeClient
from clients.prototype_losses import prototype_mse
from clients.training.objective import Step


class FedTGPClient(PrototypeClient):
    """CE + λ MSE(f, P^y); the prediction is the class of the nearest prototype.

    Source: FedTGP (Zhang et al., AAAI 2024), the client's loss.
    """

    by_prototype = True
    cosine = False

    def pull(self, step: Step) -> Tensor:
        """Return the squared distance of a batch's features to the prototypes of its classes."""
        return prototype_mse(step.features, step.labels, self.prototypes, self.known)
