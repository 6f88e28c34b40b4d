"""When a run saves checkpoints: every few rounds, after five minutes, and when it ends early.

A batch system, or Ctrl-C, may end a run at any time. The last finished round is then saved if the
strategy's state is still that round's, so that a resumed run repeats no finished round.
"""

import time
from functools import partial
from typing import Any

from fedapp.core.files import try_write
from fedapp.results.checkpoint import Checkpoint
from fedapp.runtime.callback import ActiveRun, Callback

_OLDEST = 300.0  # seconds


class Checkpoints(Callback):
    """Saves checkpoints; a full disk is reported and does not end the run."""

    def run_begins(self, run: ActiveRun) -> None:
        """Count the time to the first checkpoint from here."""
        self._saved = time.monotonic()
        self._unsaved = 0  # the last finished round, if it has no checkpoint

    def round_ends(self, run: ActiveRun, row: dict[str, Any]) -> None:
        """Save a checkpoint if one is due, but not of a round whose failed clients end the run.

        One is also due when the last one is five minutes old.
        """
        every, number = run.config.checkpoint_every, row["round"]
        if not every or (run.strategy.report.errors and not run.config.tolerate_failures):
            return
        old = time.monotonic() - self._saved > _OLDEST
        self._unsaved = number
        if old or number % every == 0 or number == run.last_round:
            self._save(run)

    def run_ends(self, run: ActiveRun, summary: dict[str, Any]) -> None:
        """Save the last finished round of a run that ends early, but no later round's state.

        The round in which it ended may already have changed the state: then its evaluation is
        missing, and a resumed run repeats it.
        """
        newest = run.strategy.newest
        if self._unsaved and newest is not None and newest.server_round == self._unsaved:
            self._save(run)

    def _save(self, run: ActiveRun) -> None:
        self._saved, number, self._unsaved = time.monotonic(), self._unsaved, 0
        saved = Checkpoint(number, run.config.fingerprint(), run.arrays, run.strategy.save())
        write = partial(run.directory.save_checkpoint, saved, run.config.checkpoint_keep)
        try_write(f"checkpoint of round {number}", write)
