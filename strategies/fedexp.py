"""FedExP: a server step length from the clients' agreement (Jhunjhunwala et al. 2023, ICLR)."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import RecordDict

from strategies.aggregate import Arrays, UpdateRefused, squared_norm
from strategies.rounds.records import ClientResult, Task, weight_of
from strategies.stateful import StatefulFedAvg

# |D_i|^2 and p_i of the round's clients, |D|^2, epsilon, number of all clients -> eta
StepRule = Callable[[np.ndarray, np.ndarray, float, float, int], float]


def of_the_paper(
    squares: np.ndarray, weights: np.ndarray, square: float, epsilon: float, clients: int
) -> float:
    """Return max(1, sum_i p_i |D_i|^2 / (2 (|D|^2 + epsilon))): equation 5."""
    return max(1.0, float(np.average(squares, weights=weights)) / (2.0 * (square + epsilon)))


def of_its_authors_code(
    squares: np.ndarray, weights: np.ndarray, square: float, epsilon: float, clients: int
) -> float:
    """Return equation 5 with M epsilon instead of epsilon, M the round's number of clients."""
    return of_the_paper(squares, weights, square, len(squares) * epsilon, clients)


def of_feddr_plus_code(
    squares: np.ndarray, weights: np.ndarray, square: float, epsilon: float, clients: int
) -> float:
    """Return min(1, mean_i |D_i| / (2 (|D| + N epsilon))), N the number of all clients.

    This never extrapolates. A public code base with the methods of FedDr+ and FedFN implements
    FedExP in this way. That their tables come from it is an inference; no paper states it.
    """
    return min(1.0, float(np.sqrt(squares).mean()) / (2.0 * (square**0.5 + clients * epsilon)))


STEPS: dict[str, StepRule] = {
    "paper": of_the_paper,
    "authors": of_its_authors_code,
    "feddr+": of_feddr_plus_code,
}


class FedExP(StatefulFedAvg):
    """w <- w_g - eta D, D = w_g - mean, eta = max(1, sum_i p_i |D_i|^2 / (2 (|D|^2 + epsilon))).

    Equation 5 of the paper with p_i = 1/M; with weights by size, its weighted form. Norms are over
    trained parameters; buffers are averaged. The average of the last two models is evaluated and
    saved (section 5 of the paper), and training continues from the last one. With `evaluate="last"`
    the last model is evaluated and saved. `step` is a rule for eta in `STEPS`. The round's metrics
    contain eta as "step_length".
    """

    rounds_updates = False  # the errors of rounding lengthen each update, and so would lengthen eta

    def __init__(self, *args: Any, epsilon: float, step: str, evaluate: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.epsilon, self.step_rule = epsilon, STEPS[step]
        self.averages = evaluate == "average"

    def add_reply(
        self, content: RecordDict, task: Task, results: list[ClientResult]
    ) -> list[ClientResult]:
        """Add models with plausible distances; raises `UpdateRefused` otherwise.

        Where no single model shows its distance, it has only this loose limit.
        """
        max_squared_distance = self._sums.model.max_squared_distance(self.trained)
        for result in results:
            if result.squared_distance > max_squared_distance:
                raise UpdateRefused(
                    f"its squared distance is {result.squared_distance:.3g}, more than the "
                    f"{max_squared_distance:.3g} of any model that could be averaged"
                )
        return super().add_reply(content, task, results)

    def check_model(self, model: Arrays, result: ClientResult) -> None:
        """Raise `UpdateRefused` unless the client reports the squared distance that it has."""
        found = squared_norm(self._update(self._global, model))
        if not math.isclose(result.squared_distance, found, rel_tol=1e-3, abs_tol=1e-12):
            raise UpdateRefused(
                f"its squared distance is {result.squared_distance:.3g}, but its model has "
                f"{found:.3g}"
            )

    def server_update(self, received: Arrays, mean: Arrays) -> Arrays:
        """Step along the mean update by the rule's step length."""
        update = self._update(received, mean)
        results = self.report.results
        weights = [weight_of(self.weights, result.examples) for result in results]
        squares = np.array([result.squared_distance for result in results])
        square, clients = squared_norm(update), self.federation.training_clients
        eta = self.step_rule(squares, np.array(weights), square, self.epsilon, clients)
        self.report.metrics["step_length"] = eta
        averages = self.averages and self.server_round > 1  # the first was initial, not trained
        self.kept = received if averages else {}  # the model before the last one
        return self.stepped(received, update, mean, -eta)

    def _update(self, received: Arrays, model: Arrays) -> Arrays:
        """Return w_g - w of the trained parameters."""
        return {name: received[name].astype(np.float64) - model[name] for name in self.trained}

    def model_to_evaluate(self, arrays: Arrays) -> Arrays:
        """Return the last model, or the mean of the last two models' parameters."""
        before = self.kept
        if not before:
            return arrays
        averaged = {
            name: ((arrays[name].astype(np.float64) + before[name]) / 2).astype(arrays[name].dtype)
            for name in self.trained
        }
        return {**arrays, **averaged}
