"""Calls the callbacks at the start of a run, after every round and at the end of the run."""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from flwr.app import ArrayRecord, MetricRecord

from fedapp.config.run_config import RunConfig
from fedapp.core.errors import UserError, out_of_memory
from fedapp.core.files import try_write
from fedapp.results.run_directory import RunDirectory
from fedapp.runtime.callbacks.base import ENDINGS, ActiveRun, Callback
from fedapp.runtime.callbacks.row import round_row, trained_row
from fedapp.runtime.callbacks.summary import refused, summarise
from fedapp.runtime.process.context import ProcessContext
from strategies.rounds.base import ClientStrategy
from strategies.rounds.records import from_array_record
from strategies.rounds.report import RoundDiverged, RoundFailed

log = logging.getLogger(__name__)


class Recorder:
    """Calls the callbacks of one run."""

    def __init__(
        self,
        directory: RunDirectory,
        config: RunConfig,
        process: ProcessContext,
        started: float,
        callbacks: Sequence[Callback],
        origins: Mapping[str, str],
    ) -> None:
        """Take the parts of a run.

        `started` is the monotonic time at which the ServerApp started; `origins` are those of the
        configuration.
        """
        self.directory, self.config, self.process = directory, config, process
        self.started, self.callbacks, self.origins = started, callbacks, origins
        self._row: dict[str, Any] = {}  # of the newest round that was recorded or begun to be

    def begin(
        self, strategy: ClientStrategy, first_round: int, arrays: ArrayRecord, last_round: int
    ) -> None:
        """Start the clock of the rounds and call `run_begins`; `arrays` is the initial model.

        A resumed run's config.toml and summary.json are those of its earlier rounds up to now.
        `last_round` may be before that of the configuration.
        """
        now = time.monotonic()
        self.run = ActiveRun(
            self.config, self.directory, self.process, strategy, first_round, last_round,
            from_array_record(arrays), self.started, now, now,
        )  # fmt: skip
        self.directory.write_config(self.config.recorded(), self.origins)
        if first_round <= last_round:
            self.directory.remove_summary()
        for callback in self.callbacks:
            callback.run_begins(self.run)

    def end_of_round(self, server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        """Call `round_ends` with the new model; returns accuracy and loss if it was evaluated."""
        run = self.run
        run.arrays = from_array_record(arrays)
        row = self._row = round_row(run.strategy, server_round)
        for callback in self.callbacks:
            callback.round_ends(run, row)
        run.round_started = time.monotonic()  # what callbacks do is not part of a round's time
        if row["accuracy"] is None or row["loss"] is None:
            return None
        return MetricRecord({"accuracy": row["accuracy"], "loss": row["loss"]})

    def check_last(self) -> None:
        """Raise `RoundFailed` if the last round's loss is not finite or no client was evaluated.

        Clients without test images are not a failure.
        """
        for row in self.run.rows()[-1:]:
            if row["accuracy"] is not None and row["loss"] is None:  # JSON has null for NaN
                raise RoundDiverged(f"the test loss is not finite after round {row['round']}")
            if row["accuracy"] is None and row.get("unevaluated"):
                report = self.run.strategy.report
                failures = report.evaluation_failures
                reason = f": {failures[0].reason}" if failures else ""
                known = report.server_round == row["round"]  # False: this process ran no round
                raise (report.failed if known else RoundFailed)(
                    f"no client could be evaluated after round {row['round']}{reason}"
                )

    def finish(self, status: str, reason: str = "", diverged: bool = False) -> str:
        """Summarise the run and call `run_ends`; return why a completed run has failed after all.

        The status is "completed", "failed" (a round gave no model, the last loss is not finite, or
        a file that the run needs cannot be written) or "interrupted" (an interruption or an error
        in the program). `diverged` marks a failed run that ended because of numbers that are not
        finite: the same run would fail again.

        Raises:
            KeyboardInterrupt, SystemExit: a callback of a completed run was interrupted; the
                summary says so, and the other callbacks have acted.
        """
        if not hasattr(self, "run"):
            return ""  # interrupted before the first round began
        self._keep_trained_round()
        summary = summarise(self.run, status, reason) | {"diverged": diverged}
        asked: BaseException | None = None
        for callback in self.callbacks:
            try:
                callback.run_ends(self.run, summary)
            except ENDINGS as interruption:
                if status != "completed" or asked is not None:
                    raise  # the run has ended early, or this is not the first one: at once
                summary["status"], asked = "interrupted", interruption
            except Exception as error:  # the other files must still be written
                sentence = str(error) if isinstance(error, UserError) else out_of_memory(error)
                log.error("%s", sentence or "the end of the run failed", exc_info=not sentence)
                if summary["status"] == "completed":
                    summary |= {"status": "failed", "reason": sentence or repr(error)}
        if asked is not None:
            # it may have been written as completed, and the clients' states are still there
            try_write("summary.json", lambda: self.directory.write_summary(summary))
            raise asked
        is_lost = status == "completed" and summary["status"] == "failed"
        return str(summary["reason"]) if is_lost else ""

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Let summary.json say why a run does not begin, if the block raises UserError."""
        try:
            yield
        except UserError as mistake:
            self._refuse(str(mistake))
            raise

    def _refuse(self, reason: str) -> None:
        """Write summary.json of a run that does not begin; that of earlier rounds stays."""
        with suppress(UserError):  # of damaged rounds, which are not the reason
            if not self.directory.rounds():
                seconds = time.monotonic() - self.started
                summary = refused(self.config, self.process, reason, seconds)
                try_write("summary.json", lambda: self.directory.write_summary(summary))

    def _keep_trained_round(self) -> None:
        """Let a round count whose evaluation was interrupted: its model belongs to the state."""
        run, newest = self.run, self.run.strategy.newest
        if newest is None or newest.server_round <= max([0, *(r["round"] for r in run.rows())]):
            return
        if self._row.get("round") != newest.server_round:
            self._row = trained_row(run.strategy, newest.server_round)
        run.arrays = from_array_record(newest.arrays)
        self._row["seconds"] = time.monotonic() - run.round_started
        run.unwritten.append(self._row)

    def close(self) -> None:
        """Call `close`, however the run ended."""
        for callback in self.callbacks:
            callback.close()
