"""A callback: how far the global model moves in a round."""

from typing import Any

import numpy as np

from fedapp.runtime.callbacks import ActiveRun, Callback


class UpdateSize(Callback):
    """Adds "update_size", the L2 distance of the new global model to the one before it."""

    def run_begins(self, run: ActiveRun) -> None:
        """Keep the model that the first round starts from."""
        self.before = run.arrays

    def round_ends(self, run: ActiveRun, row: dict[str, Any]) -> None:
        """Add the distance, and keep the new model."""
        moves = (run.arrays[name] - self.before[name] for name in self.before)
        row["update_size"] = float(np.sqrt(sum(float(np.square(move).sum()) for move in moves)))
        self.before = run.arrays
