"""FedGELA's clients: each scales the logits by its own class frequencies to predict."""

from torch import Tensor

from clients.base import LocalClient
from clients.losses import class_scale


class FrequencyScaledClient(LocalClient):
    """Evaluates with logits times Phi of `class_scale`; the global model is evaluated without.

    Source: FedGELA (Fan et al. 2023, NeurIPS), personal inference.
    """

    def logit_scale(self) -> Tensor:
        """Return Phi of this client, [C]."""
        return class_scale(self.data.class_counts)
