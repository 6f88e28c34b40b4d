"""FedGELA's clients: each scales the logits by its own class frequencies to predict."""

from torch import Tensor

from clients.base import LocalClient


class FrequencyScaledClient(LocalClient):
    """Evaluates with logits times Phi_c = C n_c / n; the global model is evaluated without Phi.

    Source: FedGELA (Fan et al. 2023, NeurIPS), personal inference.
    """

    def logit_scale(self) -> Tensor:
        """Return Phi of this client, [C]."""
        counts = self.data.class_counts
        return counts * (len(counts) / counts.sum())
