"""IFCA's server: a model for each cluster of clients, the mean of those trained from it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from flwr.app import RecordDict

from strategies.aggregate import Arrays, Checked, ExactSum, UpdateRefused
from strategies.rounds.records import ClientResult, Task
from strategies.rounds.uploads import UploadRounds

# the names in messages, as in clients.ifca; neither package imports the other
CLUSTER, CHOICE = "cluster-", "ifca-choice"


class IFCA(UploadRounds[tuple[int, Checked]]):
    """Every client gets all models, and sends one with its number; each gets the mean of its own.

    The mean is uniform. A model that no client of the round has chosen stays as it is.
    Source: IFCA (Ghosh et al. 2020, NeurIPS), algorithm 1 with model averaging.
    """

    keeps_models = True
    continues_without_results = False  # the next round would start from the same models

    def __init__(self, *args: Any, models: Sequence[Arrays], **kwargs: Any) -> None:
        """Prepare; `models` are the initial ones, which differ. Others as `ClientStrategy`."""
        super().__init__(*args, **kwargs)
        self.models = list(models)
        self._sums: list[ExactSum] = []

    def extras(self, clients: Sequence[int]) -> dict[str, Arrays]:
        """Send all models."""
        return {f"{CLUSTER}{number}": model for number, model in enumerate(self.models)}

    def evaluation_extras(self, clients: Sequence[int]) -> dict[str, Arrays]:
        """Send all models, among which clients choose anew."""
        return self.extras(clients)

    def begin_round(self, received: Arrays, total_weight: int, cohort: int) -> None:
        """Start a sum for each model."""
        super().begin_round(received, total_weight, cohort)
        self._sums = [ExactSum(model, cohort) for model in self.models]

    def read(self, client: int, arrays: Arrays) -> tuple[int, Checked]:
        """Return a client's choice and its model; raises `UpdateRefused` if they are not valid."""
        model = {name: array for name, array in arrays.items() if name != CHOICE}
        choice = arrays.get(CHOICE, np.zeros(0))
        if choice.shape != (1,) or choice.item() not in range(len(self.models)):
            last = len(self.models) - 1
            raise UpdateRefused(f"'{CHOICE}' is not the number of a model, 0 to {last}")
        number = int(choice.item())
        return number, self._sums[number].check(model)

    def add_reply(
        self, content: RecordDict, task: Task, results: list[ClientResult]
    ) -> list[ClientResult]:
        """Add each client's model to the sum of its choice, and keep nothing else of it."""
        usable = super().add_reply(content, task, results)
        for result in usable:
            number, model = self._read.pop(result.client)
            self._sums[number].add_checked(model, 1)
        return usable

    def end_round(self, received: Arrays) -> Arrays:
        """Replace the models that were trained by their means."""
        for number, total in enumerate(self._sums):
            self.report.metrics[f"clients_of_cluster_{number}"] = total.weight
            if total.weight:
                self.models[number] = total.mean()
        return received

    def state(self) -> Arrays:
        """Return all models."""
        named = enumerate(self.models)
        return {
            f"{CLUSTER}{n}.{name}": array for n, model in named for name, array in model.items()
        }

    def load_state(self, state: Arrays) -> None:
        """Restore all models; KeyError if one is missing."""
        self.models = [
            {name: state[f"{CLUSTER}{number}.{name}"] for name in model}
            for number, model in enumerate(self.models)
        ]
