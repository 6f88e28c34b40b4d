"""FedNova's clients: their update divided by how far their steps could have carried it."""

from clients.client import Arrays, LocalClient
from clients.local_training import TrainingResult
from clients.sgd import effective_steps


class FedNovaClient(LocalClient):
    """Sends d_i = (w_g - w_i) / a_i in place of w_i; buffers travel as they are.

    a_i = |a_i|_1 of SGD with momentum; it goes into the report. Source: Wang et al. 2020, NeurIPS,
    equation 6 and section 4.
    """

    def finish(
        self, received: Arrays, trained: Arrays, result: TrainingResult, lr: float
    ) -> Arrays:
        """Return the normalised update of the trained parameters."""
        self.extra = effective_steps(result.steps, self.settings.momentum)
        updates = {name: (received[name] - trained[name]) / self.extra for name in self.trained}
        return {**trained, **updates}
