"""FedDyn: the mean, corrected by the drift of all clients so far (Acar et al. 2021, ICLR)."""

from typing import Any

import numpy as np

from strategies.aggregate import Arrays
from strategies.fedavg import FedAvg


class FedDyn(FedAvg):
    """h <- h - alpha/N sum_i (w_i - w_g); w <- mean_i w_i - h / alpha, a uniform mean.

    Algorithm 1 of the paper, over the trained parameters; buffers are averaged. The mean ignores
    `weights`, because it must match h, which is an unweighted sum over clients.
    """

    uniform = True

    def __init__(self, *args: Any, alpha: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.alpha = alpha
        self._h: Arrays = {}

    def server_update(self, received: Arrays, mean: Arrays) -> Arrays:
        """Update h and return the corrected mean."""
        share = self.alpha * len(self.report.results) / len(self.federation.nodes)
        moved = {}
        for name in self.trained:
            drift = mean[name].astype(np.float64) - received[name]
            self._h[name] = self._h.get(name, 0.0) - share * drift
            moved[name] = (mean[name] - self._h[name] / self.alpha).astype(mean[name].dtype)
        return {**mean, **moved}

    def state(self) -> Arrays:
        """Return h."""
        return dict(self._h)

    def load_state(self, state: Arrays) -> None:
        """Restore h."""
        self._h = dict(state)
