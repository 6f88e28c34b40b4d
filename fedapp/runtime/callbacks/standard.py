"""fedapp's own callbacks: evaluation, metrics, console, trackers and final files."""

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import torch

from fedapp.core.errors import UserError
from fedapp.core.files import try_write, write_atomically
from fedapp.core.paths import state_folder
from fedapp.methods.row import CLIENT_MEAN, GLOBAL
from fedapp.results import progress
from fedapp.results.class_accuracy import class_accuracy_words
from fedapp.results.formatting import stored_size
from fedapp.results.plots.curves import curves
from fedapp.results.plots.measure_plots import write_plots
from fedapp.results.plots.rendering import png
from fedapp.results.report.report import write_report
from fedapp.results.trackers import Tracker
from fedapp.runtime.callbacks.base import ENDINGS, ActiveRun, Callback
from fedapp.runtime.process.evaluation import Evaluation, evaluate_classes
from strategies.rounds.interruption import uninterrupted
from strategies.rounds.records import UNEXPORTED

log = logging.getLogger(__name__)


class Evaluate(Callback):
    """Adds accuracy and loss to a round: of the global model or of the clients' models."""

    def round_ends(self, run: ActiveRun, row: dict[str, Any]) -> None:
        """Add accuracy and loss to the row, or None if this round has no evaluation."""
        number = row["round"]
        due = number == run.last_round or number % run.config.eval_every == 0
        evaluation = self._global_model(run) if due else None
        method = run.process.method
        row["accuracy"], row["loss"] = self._headline(run, evaluation)
        row["class_accuracy"] = evaluation and evaluation.class_accuracy
        lacking = [c for c in run.strategy.report.unevaluated if c < run.config.training_clients]
        if method.accuracy != GLOBAL and lacking:  # those of `accuracy`: no new clients
            row["unevaluated"] = lacking
        if evaluation is not None and method.accuracy != GLOBAL:
            row |= {"global_accuracy": evaluation.accuracy, "global_loss": evaluation.loss}

    def _global_model(self, run: ActiveRun) -> Evaluation | None:
        """Evaluate the global model; returns None if the method has no global model to evaluate."""
        process = run.process
        if not process.method.has_global_model:
            return None
        run.load_evaluated()
        return evaluate_classes(
            process.model, process.data.test_batches(), process.data.dataset.num_classes
        )

    def _headline(
        self, run: ActiveRun, evaluation: Evaluation | None
    ) -> tuple[float | None, float | None]:
        """Return the round's accuracy and loss: of the global model or of the clients' models."""
        kind = run.process.method.accuracy
        if evaluation is not None and kind == GLOBAL:
            return evaluation.accuracy, evaluation.loss
        clients = run.strategy.report.client_accuracy
        if kind == GLOBAL or not clients:
            return None, None
        mean = "mean" if kind == CLIENT_MEAN else "total"
        return clients[f"client_accuracy_{mean}"], clients.get(f"client_loss_{mean}")


class RoundTimer(Callback):
    """Measures the seconds of a round, from its start to the end of its tests."""

    def round_ends(self, run: ActiveRun, row: dict[str, Any]) -> None:
        """Read the clock, which the recorder starts again after all callbacks."""
        now = time.monotonic()
        row["seconds"] = now - run.round_started
        row["test_seconds"] = now - run.strategy.report.trained_at


class MetricsFile(Callback):
    """Appends rounds to metrics.jsonl; writes again later what a full disk refused."""

    def round_ends(self, run: ActiveRun, row: dict[str, Any]) -> None:
        """Append the row of a round."""
        run.unwritten.append(row)
        self._write(run)

    def run_ends(self, run: ActiveRun, summary: dict[str, Any]) -> None:
        """Append the rows that are not yet written."""
        self._write(run)
        if run.unwritten:
            _incomplete(run, summary, "metrics.jsonl")

    def _write(self, run: ActiveRun) -> None:
        numbers = ", ".join(str(row["round"]) for row in run.unwritten)
        write = partial(run.directory.log_round, *run.unwritten)
        with uninterrupted():  # else a round could be written twice
            if run.unwritten and try_write(f"metrics.jsonl: round {numbers}", write):
                run.unwritten = []


class ClientScores(Callback):
    """Writes the newest scores of every client to client_scores.json."""

    def run_begins(self, run: ActiveRun) -> None:
        """Remove scores of rounds that this process trains again."""
        with suppress(UserError, OSError):
            if run.directory.client_scores().get("round", 0) >= run.first_round:
                (run.directory.path / "client_scores.json").unlink(missing_ok=True)

    def round_ends(self, run: ActiveRun, row: dict[str, Any]) -> None:
        """Write the file if the round evaluated the clients; a failure is reported."""
        if scores := run.strategy.report.scores:
            write = partial(run.directory.write_client_scores, row["round"], scores)
            try_write(f"client_scores.json: round {row['round']}", write)


class Console(Callback):
    """Logs the run's main settings, one line per round, and failures of clients."""

    def __init__(self) -> None:
        """Start without a failure."""
        self._known: list[str] = []  # of the round before

    def run_begins(self, run: ActiveRun) -> None:
        """Log what will be trained and what clients keep."""
        config, process = run.config, run.process
        first, last = run.first_round, run.last_round
        rounds = f"rounds {first}-{last}" if first <= last else f"none of {last} rounds is left"
        log.info(
            f"{config.method} on {config.dataset} with {process.title}: {rounds}, lr "
            f"{config.lr:g}, {config.local_epochs} local epochs, device {process.device}, run "
            f"directory {run.directory.path}"
        )
        if config.eval_every > 1 and (words := class_accuracy_words(config.analyses)):
            log.info(
                f"{' and '.join(words)}: of the tests of every {config.eval_every} rounds only, "
                "and smaller than with eval-every=1"
            )
        if malicious := sorted(process.attackers):
            numbers = ", ".join(map(str, malicious))
            log.warning(f"clients that are malicious, to test the run: {numbers} ({config.attack})")
        if process.keeps:
            size, where = stored_size(process.state_bytes()), state_folder(config.state_dir)
            more = "or in their node's state-dir"
            log.info(f"clients keep: {process.keeps}; {size} in {where} of their host, {more}")

    def round_ends(self, run: ActiveRun, row: dict[str, Any]) -> None:
        """Log one line for the round, and one for each new failure of a client."""
        elapsed = time.monotonic() - run.rounds_started
        log.info(progress.round_line(row, run.last_round, elapsed, first_round=run.first_round))
        failures = [*row["failures"], *row.get("evaluation_failures", [])]
        for line in progress.failure_lines(failures, self._known):
            log.warning(line)
        self._known = failures


class Tracking(Callback):
    """Sends every number of a round to a tracker."""

    def __init__(self, tracker: Tracker) -> None:
        """Take an open tracker."""
        self.tracker = tracker
        self.summary: Mapping[str, Any] = {}

    def round_ends(self, run: ActiveRun, row: dict[str, Any]) -> None:
        """Log a row."""
        self.tracker.log(row)

    def run_ends(self, run: ActiveRun, summary: dict[str, Any]) -> None:
        """Keep the summary, whose status the callbacks after this one may change."""
        self.summary = summary

    def close(self) -> None:
        """Close the tracker, which gets the summary as it is after all callbacks."""
        self.tracker.close(self.summary)


class SummaryFile(Callback):
    """Writes summary.json."""

    def run_ends(self, run: ActiveRun, summary: dict[str, Any]) -> None:
        """Write the file; without it the run has failed."""
        if not try_write("summary.json", lambda: run.directory.write_summary(summary)):
            _incomplete(run, summary, "summary.json")


class FinalModel(Callback):
    """Writes model.safetensors: the model after the last completed round."""

    def run_ends(self, run: ActiveRun, summary: dict[str, Any]) -> None:
        """Write the file; without it the run has failed, and an earlier end's model is removed."""
        try:
            written = try_write("model.safetensors", lambda: self._save(run))
        except ENDINGS:
            self._remove_earlier(run)
            raise
        if not written:
            self._remove_earlier(run)
            _incomplete(run, summary, "model.safetensors")

    def _remove_earlier(self, run: ActiveRun) -> None:
        if run.strategy.newest is not None:  # else no round was trained after that end
            with suppress(OSError):
                run.directory.model_path.unlink(missing_ok=True)

    def _save(self, run: ActiveRun) -> None:
        """Save the model that the method evaluates.

        The process's model is loaded first, because the last round may not have been evaluated, or
        may have run in an earlier process.
        """
        process = run.process
        run.load_evaluated()
        more = process.method.saves_server_state
        tensors = _server_tensors(run) if more else process.model.state_dict()
        run.directory.save_model(tensors, process.metadata())


class Figures(Callback):
    """Plots the curves of the run and its measures."""

    def run_ends(self, run: ActiveRun, summary: dict[str, Any]) -> None:
        """Write the plots; one that cannot be made is reported."""
        _make("curves.png", lambda: self._curves(run, summary["accuracy_of"]))
        _make("plots of measures", lambda: write_plots(run.directory))

    def _curves(self, run: ActiveRun, tested: str) -> None:
        rows = run.rows()
        if rows:
            title = f"{run.config.method} on {run.config.dataset}"
            write_atomically(run.directory.path / "curves.png", png(curves(rows, title, tested)))


class Report(Callback):
    """Writes report.html and logs the summary."""

    def run_ends(self, run: ActiveRun, summary: dict[str, Any]) -> None:
        """Write the page from the run's files, then log the summary."""
        _make("report.html", lambda: write_report(run.directory.path))
        log.info(progress.summary_text(summary, run.directory.path))


def _make(name: str, write: Callable[[], object]) -> None:
    """Make a picture or page; an error is reported, and the run's results stay as they are."""
    try:
        try_write(name, write)
    except Exception as error:
        expected = isinstance(error, UserError)
        log.error("%s is not made: %s", name, error, exc_info=not expected)


def _incomplete(run: ActiveRun, summary: dict[str, Any], file: str) -> None:
    """Let a completed run count as failed because a file of its results cannot be written."""
    if summary["status"] == "completed":
        summary["status"] = "failed"
        summary["reason"] = (
            f"{run.directory.path / file} cannot be written: make room or get write access, and "
            "resume the run, which needs a checkpoint"
        )


def _server_tensors(run: ActiveRun) -> dict[str, torch.Tensor]:
    """Return the server's tensors if clients keep their models, but none about single clients."""
    arrays = {**run.arrays, **run.strategy.state()}
    return {n: torch.from_numpy(a) for n, a in arrays.items() if not n.startswith(UNEXPORTED)}
