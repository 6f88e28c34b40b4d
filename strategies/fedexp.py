"""FedExP: a server step length from the clients' own agreement (Jhunjhunwala et al. 2023, ICLR)."""

from typing import Any

import numpy as np
from flwr.app import RecordDict

from strategies.aggregate import Arrays, UpdateRefused
from strategies.fedavg import FedAvg
from strategies.records import ClientResult, Task, weight_of


class FedExP(FedAvg):
    """w <- w_g - eta D, D = w_g - mean, eta = max(1, sum_i p_i |D_i|^2 / (2 (|D|^2 + epsilon))).

    Equation 5 of the paper with p_i = 1/M; with weights by size, its weighted form. Norms are over
    trained parameters; buffers are plainly averaged. What is evaluated and saved is the average of
    the last two models (section 5 of the paper), while training goes on from the last one; with
    `evaluate="last"` it is that one. With `rule="cohort"` epsilon is multiplied by the number of
    clients M, as in the authors' code. The round's metrics have eta as "step_length".
    """

    def __init__(
        self, *args: Any, epsilon: float = 1e-3, rule: str = "constant",
        evaluate: str = "average", **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__(*args, **kwargs)
        self.epsilon, self.by_cohort = epsilon, rule == "cohort"
        self.averages = evaluate == "average"
        self._before: Arrays = {}

    def take(self, content: RecordDict, task: Task, results: list[ClientResult]) -> None:
        """Add models whose distances are possible; raises `UpdateRefused` otherwise."""
        farthest = self._sums.model.farthest(self.trained)
        for result in results:
            if result.squared_distance > farthest:
                raise UpdateRefused(
                    f"its squared distance is {result.squared_distance:.3g}, more than the "
                    f"{farthest:.3g} of any model that could be averaged"
                )
        super().take(content, task, results)

    def server_update(self, received: Arrays, mean: Arrays) -> Arrays:
        """Extrapolate the mean along the mean update; never shorter than the mean itself."""
        update = {name: received[name].astype(np.float64) - mean[name] for name in self.trained}
        results = self.report.results
        weights = [weight_of(self.weights, result.examples) for result in results]
        spread = np.average([result.squared_distance for result in results], weights=weights)
        length = sum(float(np.sum(array**2)) for array in update.values())
        epsilon = self.epsilon * (len(results) if self.by_cohort else 1)
        eta = max(1.0, float(spread) / (2.0 * (length + epsilon)))
        self.report.metrics["step_length"] = eta
        self._before = received if self.averages else {}
        moved = {
            name: (received[name] - eta * array).astype(mean[name].dtype)
            for name, array in update.items()
        }
        return {**mean, **moved}

    def model_to_evaluate(self, arrays: Arrays) -> Arrays:
        """Return the last model, or one with the mean of its parameters and the last but one's."""
        averaged = {
            name: ((arrays[name].astype(np.float64) + self._before[name]) / 2).astype(
                arrays[name].dtype
            )
            for name in self.trained
            if self._before
        }
        return {**arrays, **averaged}

    def state(self) -> Arrays:
        """Return the model before the last, which evaluation averages with."""
        return dict(self._before)

    def load_state(self, state: Arrays) -> None:
        """Take back the model before the last."""
        self._before = dict(state)
