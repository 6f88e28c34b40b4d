"""FD's client: the mean logits of each class serve as prototypes (Jeong et al. 2018)."""

from torch import Tensor

from clients.prototype_client import PrototypeClient
from clients.prototype_losses import soft_cross_entropy
from clients.training.objective import Step


class FDClient(PrototypeClient):
    """CE + λ cross-entropy to the softmax of the received mean logits of the image's class."""

    cosine = False

    def pull(self, step: Step) -> Tensor:
        """Return the distillation term of a batch."""
        return soft_cross_entropy(step.logits, step.labels, self.prototypes, self.known)

    def represent(self, features: Tensor, logits: Tensor) -> Tensor:
        """Return the logits."""
        return logits
