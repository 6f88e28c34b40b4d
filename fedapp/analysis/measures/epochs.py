"""The accuracy of a local model after each epoch of its round.

The evaluation does not change the training: the model is tested between two epochs, without
gradients and with separate random numbers, so the local models equal those of the run bit for bit.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from clients.training.arrays import to_arrays
from clients.training.local_training import Batches
from clients.training.model_slot import ClientData
from fedapp.analysis.formulas.accuracy import in_local_accuracy, out_local_accuracy
from fedapp.analysis.formulas.features import mean
from fedapp.analysis.measures.base import Figures, Measure
from fedapp.analysis.measures.views import Local, Stop, View, borrowed, load, view_of
from fedapp.core.arrays import Arrays
from fedapp.runtime.process.context import ProcessContext


def watched(data: ClientData, epochs: int, see: Callable[[], None]) -> ClientData:
    """Return a client's data that call `see` between the `epochs` epochs of training."""
    started = 0

    def training(server_round: int) -> Callable[[], Batches]:
        epoch = data.training(server_round)

        def next_epoch() -> Batches:
            nonlocal started
            if 0 < started < epochs:
                see()
            started += 1
            return epoch()

        return next_epoch

    return replace(data, training=training)


def stop_of(view: View, process: ProcessContext, arrays: Arrays | None = None) -> Stop:
    """Return the stop of a model with this view; its arrays are `arrays` or the process's model."""
    shared = process.slot.shared
    own = to_arrays(shared) if arrays is None else {name: arrays[name] for name in shared}
    return Stop(mean(view.right), view.class_accuracy, own)


class LocalTraining(Measure):
    """The accuracy of local models after each epoch, and of their mean."""

    title = "Accuracy during local training"
    source = "FedNTD (Lee et al. 2022), figure 6"
    epochs = True

    def begin(self) -> None:
        """Keep nothing yet of any client."""
        self.sums: list[Arrays] = []
        self.weight = 0.0

    def of_client(self, local: Local) -> Figures:
        """Return the accuracies after each epoch; names end with the number of epochs."""
        uniform = self.process.config.weights == "uniform"
        examples = self.process.data.partition.train[local.client]  # with a class that it lacks now
        self._add(local, 1.0 if uniform else float(len(examples)))
        figures: Figures = {}
        for epoch, stop in enumerate(local.path):
            figures |= {
                f"in_local_{epoch}": in_local_accuracy(stop.class_accuracy, local.counts),
                f"out_local_{epoch}": out_local_accuracy(stop.class_accuracy, local.counts),
                f"test_{epoch}": stop.accuracy,
            }
        return figures

    def of_model(self) -> dict[str, Any]:
        """Return the accuracy of the mean of the local models after each epoch.

        The mean is the global model that plain averaging of these clients would give after so many
        epochs.
        """
        with borrowed(self.process):
            return {f"mean_{e}": self._accuracy_of(total) for e, total in enumerate(self.sums)}

    def _add(self, local: Local, weight: float) -> None:
        """Add a client's models, one for each epoch, to the sums (in float64)."""
        self.sums = self.sums or [{} for _ in local.path]
        self.weight += weight
        for total, stop in zip(self.sums, local.path, strict=True):
            for name, array in stop.arrays.items():
                total[name] = total.get(name, 0.0) + weight * array.astype(np.float64)

    def _accuracy_of(self, total: Arrays) -> float:
        """Return the accuracy of a mean, which is loaded into the process's model."""
        load(self.process, {n: (s / self.weight).astype(np.float32) for n, s in total.items()})
        return mean(view_of(self.process).right)
