"""FedAvgM: momentum on the server (Hsu et al. 2019, arXiv 1909.06335)."""

from typing import Any

import numpy as np

from strategies.aggregate import Arrays
from strategies.stateful import StatefulFedAvg


class FedAvgM(StatefulFedAvg):
    """m <- beta m + D; w <- w_g - m with D = w_g - mean, for trained parameters.

    With `nesterov` the step is D + beta m. Buffers are averaged. The momentum is kept in float64,
    so that beta = 0 gives FedAvg's model bit for bit.
    """

    def __init__(self, *args: Any, beta: float, nesterov: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.beta, self.nesterov = beta, nesterov

    def server_update(self, received: Arrays, mean: Arrays) -> Arrays:
        """Update the momentum and subtract it from the received model."""
        steps, momentum = {}, self.kept
        for name in self.trained:
            update = received[name].astype(np.float64) - mean[name]
            momentum[name] = self.beta * momentum.get(name, 0.0) + update
            steps[name] = update + self.beta * momentum[name] if self.nesterov else momentum[name]
        return self.stepped(received, steps, mean, -1.0)
