"""FedDyn: the mean, corrected by the drift of all clients so far (Acar et al. 2021, ICLR)."""

from typing import Any

import numpy as np

from strategies.aggregate import Arrays
from strategies.stateful import StatefulFedAvg


class FedDyn(StatefulFedAvg):
    """h <- h - alpha/N sum_i (w_i - w_g); w <- mean_i w_i - h / alpha, a uniform mean.

    Algorithm 1 of the paper, over the trained parameters; buffers are averaged. The mean must match
    h, which is an unweighted sum over clients, so `weights` must be "uniform". The model that
    clients get, w, is evaluated and saved; with `evaluate="mean"` it is mean_i w_i = w + h / alpha.
    """

    rounds_updates = False  # h adds up the errors of rounding, which clients' own terms do not have

    def __init__(self, *args: Any, alpha: float, evaluate: str = "server", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.alpha, self.evaluates_mean = alpha, evaluate == "mean"

    def server_update(self, received: Arrays, mean: Arrays) -> Arrays:
        """Update h and return the corrected mean."""
        share = self.alpha * len(self.report.results) / self.federation.training_clients
        steps, h = {}, self.kept
        for name in self.trained:
            drift = mean[name].astype(np.float64) - received[name]
            h[name] = h.get(name, 0.0) - share * drift
            steps[name] = h[name] / self.alpha
        return self.stepped(mean, steps, mean, -1.0)

    def model_to_evaluate(self, arrays: Arrays) -> Arrays:
        """Return w, or the mean of the last round's models."""
        if not self.evaluates_mean:
            return arrays
        means = {
            name: (arrays[name] + h / self.alpha).astype(arrays[name].dtype)
            for name, h in self.kept.items()
        }
        return {**arrays, **means}
