"""FedNova: a mean of updates normalised by local steps (Wang et al. 2020, NeurIPS)."""

from typing import Any

import numpy as np
from flwr.app import RecordDict

from strategies.aggregate import Arrays, UpdateRefused
from strategies.fedavg import FedAvg
from strategies.rounds.records import ClientResult, Task, weight_of


class FedNova(FedAvg):
    """w <- w_g - t sum_i p_i d_i, t = sum_i p_i a_i: equation 6 of the paper, tau_eff = t.

    Clients send their normalised update d_i = (w_g - w_i) / a_i instead of the model, and a_i in
    their report. With equal numbers of steps this is FedAvg. Buffers are averaged. The round's
    metrics contain tau_eff as "effective_steps".
    """

    rounds_updates = False  # what its clients send is no model

    def __init__(self, *args: Any, epochs: int, momentum: float, **kwargs: Any) -> None:
        """Prepare a strategy; the clients' `epochs` and `momentum` bound their a_i."""
        super().__init__(*args, **kwargs)
        self.epochs, self.momentum = epochs, momentum

    def add_reply(
        self, content: RecordDict, task: Task, results: list[ClientResult]
    ) -> list[ClientResult]:
        """Add updates with possible a_i; raises `UpdateRefused` otherwise."""
        for result in results:
            # an epoch has at most `examples` steps, each of which counts at most 1 / (1 - momentum)
            # times
            most = self.epochs * result.examples / (1 - self.momentum)
            steps = result.effective_steps
            if not 0 < steps <= most:
                raise UpdateRefused(
                    f"its effective number of steps is {steps:g}, not in (0, {most:g}]"
                )
        return super().add_reply(content, task, results)

    def server_update(self, received: Arrays, mean: Arrays) -> Arrays:
        """Subtract tau_eff times the mean normalised update from the received model."""
        results = self.report.results
        weights = [weight_of(self.weights, result.examples) for result in results]
        steps = np.average([result.effective_steps for result in results], weights=weights)
        self.report.metrics["effective_steps"] = float(steps)
        updates = {name: mean[name].astype(np.float64) for name in self.trained}
        return self.stepped(received, updates, mean, -float(steps))
