"""The base class of measures of models, which get local models one by one.

Thus only one local model is in memory at a time, and a measure is a class of a few lines.
"""

from typing import Any, ClassVar

import numpy as np

from fedapp.analysis.measures.views import Local, View
from fedapp.runtime.process.context import ProcessContext

Figures = dict[str, float]


class Measure:
    """The interface: `begin`, `of_client` for each local model, then `of_model` once."""

    title: ClassVar[str]
    source: ClassVar[str]
    local: ClassVar[bool] = True  # whether it needs local models, each of which costs a training
    epochs: ClassVar[bool] = False  # whether it needs them after each epoch (`Local.path`)

    def __init__(
        self, process: ProcessContext, received: View, result: View | None, counts: np.ndarray
    ) -> None:
        """Take what a round started from and gave.

        Args:
            process: has the data and a model.
            received: the model that the round's clients received.
            result: the round's result; None if it is not known.
            counts: [C], the training images of each class that all clients of the round have.
        """
        self.process, self.received, self.result = process, received, result
        self.counts = counts
        self.begin()

    def begin(self) -> None:
        """Prepare for the local models."""

    @property
    def newest(self) -> View:
        """The global model after the round or, if that is unknown, before it."""
        return self.result or self.received

    def of_client(self, local: Local) -> Figures:
        """Return the results for one client."""
        return {}

    def of_model(self) -> dict[str, Any]:
        """Return the results for the global model, after all clients; the process has it loaded."""
        return {}
