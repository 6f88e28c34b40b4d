"""FedDyn: the mean, corrected by what all clients have drifted (Acar et al. 2021, ICLR)."""

from typing import Any

import numpy as np

from strategies.aggregate import Arrays
from strategies.fedavg import FedAvg


class FedDyn(FedAvg):
    """h <- h - alpha/N sum_i (w_i - w_g); w <- mean_i w_i - h / alpha, each client counted once.

    Algorithm 1 of the paper, over the trained parameters; buffers are plainly averaged. The mean is
    uniform whatever `weights` says: h is a sum over clients, and the two belong together.
    """

    uniform = True

    def __init__(self, *args: Any, alpha: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.alpha = alpha
        self._h: Arrays = {}

    def server_update(self, received: Arrays, mean: Arrays) -> Arrays:
        """Move h, and return the corrected mean."""
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
        """Take back h."""
        self._h = dict(state)
