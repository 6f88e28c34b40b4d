"""FedGELA's clients: they predict with the logits that their own class frequencies scale."""

from torch import Tensor

from clients.base import LocalClient


class FrequencyScaledClient(LocalClient):
    """Tests the model with Phi_c = C n_c / n; the global model is tested without.

    Source: FedGELA (Fan et al. 2023, NeurIPS), personal inference.
    """

    def logit_scale(self) -> Tensor:
        """Return Phi of this client, [C]."""
        counts = self.data.class_counts
        return counts * (len(counts) / counts.sum())
