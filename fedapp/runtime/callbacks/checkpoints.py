"""When a run saves checkpoints: every few rounds, after five minutes, and when it ends early.

A batch system, or Ctrl-C, may end a run at any time. The last finished round is then saved, so that
a resumed run repeats no finished round.
"""

import time
from functools import partial
from typing import Any

from fedapp.core.errors import UserError
from fedapp.core.files import try_write
from fedapp.results.checkpoint import Checkpoint
from fedapp.runtime.callbacks.base import ActiveRun, Callback

_OLDEST = 300.0  # seconds


class Checkpoints(Callback):
    """Saves checkpoints; a full disk is reported, and ends only a run whose clients keep states.

    A client keeps the states of its last two trainings, so that the rounds of a run without
    checkpoints could not be repeated.
    """

    def __init__(self) -> None:
        """Begin without a finished round."""
        self._saved = 0.0  # when the last one was
        self._waiting: Checkpoint | None = None  # of the last finished round, not yet written

    def run_begins(self, run: ActiveRun) -> None:
        """Count the time to the first checkpoint from here."""
        self._saved = time.monotonic()

    def round_ends(self, run: ActiveRun, row: dict[str, Any]) -> None:
        """Save a checkpoint if one is due, but not of a round whose failed clients end the run.

        One is also due when the last one is five minutes old.
        """
        every, number = run.config.checkpoint_every, row["round"]
        untested = row["accuracy"] is None and bool(row.get("unevaluated"))
        if untested and number == run.last_round:
            return  # the run fails for it, and a resumed run tests it again
        if not every or (run.strategy.report.errors and not run.config.tolerate_failures):
            return
        fingerprint, state = run.config.fingerprint(), run.strategy.save()
        self._waiting = Checkpoint(number, fingerprint, run.arrays, state)
        old = time.monotonic() - self._saved > _OLDEST
        if old or number % every == 0 or number == run.last_round:
            self._write(run)
        if self._waiting is not None and run.process.keeps:
            raise UserError(
                f"the run ends because the checkpoint of round {number} cannot be written, and its "
                f"clients keep {run.process.keeps}, with which earlier rounds cannot be repeated: "
                "make room, and resume"
            )

    def run_ends(self, run: ActiveRun, summary: dict[str, Any]) -> None:
        """Save the last finished round of a run that ends early, or whose disk was full."""
        self._write(run)

    def _write(self, run: ActiveRun) -> None:
        if self._waiting is None:
            return
        self._saved, keep = time.monotonic(), run.config.checkpoint_keep
        write = partial(run.directory.save_checkpoint, self._waiting, keep)
        if try_write(f"checkpoint of round {self._waiting.server_round}", write):
            self._waiting = None
