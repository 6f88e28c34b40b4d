"""FedNova: clients with more local steps do not pull harder (Wang et al. 2020, NeurIPS)."""

import numpy as np
from flwr.app import RecordDict

from strategies.aggregate import Arrays, UpdateRefused
from strategies.fedavg import FedAvg
from strategies.records import ClientResult, Task


class FedNova(FedAvg):
    """w <- w_g - t sum_i p_i d_i, t = sum_i p_i a_i: equation 6 of the paper, tau_eff = t.

    Clients send their normalised update d_i = (w_g - w_i) / a_i in place of the model, and a_i in
    their report. With equal numbers of steps this is FedAvg; buffers are plainly averaged.
    """

    def take(self, content: RecordDict, task: Task, results: list[ClientResult]) -> None:
        """Add updates whose a_i are possible; raises `UpdateRefused` otherwise."""
        for result in results:
            if result.extra <= 0:
                raise UpdateRefused(f"its effective number of steps is {result.extra:g}")
        super().take(content, task, results)

    def server_update(self, received: Arrays, mean: Arrays) -> Arrays:
        """Move the received model by the mean of the normalised updates, tau_eff steps far."""
        results = self.report.results
        weights = [result.examples if self.weights == "size" else 1 for result in results]
        steps = np.average([result.extra for result in results], weights=weights)
        moved = {
            name: (received[name] - steps * mean[name]).astype(received[name].dtype)
            for name in self.trained
        }
        return {**mean, **moved}
