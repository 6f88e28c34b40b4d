"""FedAvgM: momentum on the server (Hsu et al. 2019, arXiv 1909.06335)."""

from typing import Any

import numpy as np

from strategies.aggregate import Arrays
from strategies.fedavg import FedAvg


class FedAvgM(FedAvg):
    """m <- beta m + (w_g - mean); w <- w_g - m, for trained parameters; buffers are averaged.

    The momentum is kept in float64, so that beta = 0 gives FedAvg's model bit for bit.
    """

    def __init__(self, *args: Any, beta: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.beta = beta
        self._momentum: Arrays = {}

    def server_update(self, received: Arrays, mean: Arrays) -> Arrays:
        """Update the momentum and subtract it from the received model."""
        moved = {}
        for name in self.trained:
            update = received[name].astype(np.float64) - mean[name]
            self._momentum[name] = self.beta * self._momentum.get(name, 0.0) + update
            moved[name] = (received[name] - self._momentum[name]).astype(mean[name].dtype)
        return {**mean, **moved}

    def state(self) -> Arrays:
        """Return the momentum."""
        return dict(self._momentum)

    def load_state(self, state: Arrays) -> None:
        """Restore the momentum."""
        self._momentum = dict(state)
