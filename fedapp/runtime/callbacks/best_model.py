"""Keeps the global model with the highest accuracy, which the last rounds may have lost again.

Over heterogeneous clients the accuracy changes by several points from round to round.
"""

import logging
from functools import partial
from typing import Any

from fedapp.core.files import safetensors_bytes, try_write, write_atomically
from fedapp.results.final_model import kept_best, model_file
from fedapp.results.which_model import BEST
from fedapp.runtime.callbacks.base import ActiveRun, Callback

log = logging.getLogger(__name__)


class BestModel(Callback):
    """Writes best.safetensors whenever a test finds a higher accuracy than all before."""

    def __init__(self) -> None:
        """Begin below any accuracy."""
        self._accuracy = -1.0

    def run_begins(self, run: ActiveRun) -> None:
        """Continue from the model that the resumed rounds have kept.

        One of a later round, which this process trains again, is replaced when a test comes.
        """
        best = kept_best(run.directory)
        if best is not None and best.server_round < run.first_round:
            self._accuracy = best.accuracy
        elif best is not None and run.first_round > 1:
            log.warning(
                "best.safetensors was of round %d, which is trained again; that of the rounds "
                "before %d is lost, and the best one from there on is kept",
                best.server_round, run.first_round,
            )  # fmt: skip

    def round_ends(self, run: ActiveRun, row: dict[str, Any]) -> None:
        """Write the model if the round was tested, with a higher accuracy; or report a failure."""
        accuracy = row["accuracy"]
        if accuracy is None or accuracy <= self._accuracy:
            return
        run.load_evaluated()
        metadata = {**run.process.metadata(), "round": str(row["round"]), "accuracy": str(accuracy)}
        content = safetensors_bytes(run.process.model.state_dict(), metadata)
        save = partial(write_atomically, model_file(run.directory, BEST), content)
        if try_write(f"best.safetensors: round {row['round']}", save):
            self._accuracy = accuracy
