"""What a run writes down: one line per round, checkpoints, and the finished run directory.

The strategy calls `Recorder.end_of_round` with each new global model; everything that looks at the
model or the clock but does not change the training happens here.
"""

import time
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from flwr.app import ArrayRecord, MetricRecord

import fedapp
from clients.training.arrays import load_arrays
from fedapp.config.run_config import RunConfig
from fedapp.core.files import plain, write_atomically, written
from fedapp.core.paths import state_folder
from fedapp.methods.row import CLIENT_MEAN, GLOBAL
from fedapp.results import checkpoint, progress
from fedapp.results.class_accuracy import class_accuracy_measures
from fedapp.results.formatting import megabytes
from fedapp.results.plots import curves as plots
from fedapp.results.plots.measure_plots import write_plots
from fedapp.results.plots.rendering import png
from fedapp.results.report import write_report
from fedapp.results.run_directory import RunDirectory
from fedapp.results.trackers import open_tracker
from fedapp.runtime.evaluation import Evaluation, evaluate_classes
from fedapp.runtime.node import Node
from fedapp.runtime.summary import summarise
from strategies.aggregate import Arrays
from strategies.rounds.base import ClientStrategy
from strategies.rounds.federation import RoundDiverged, RoundFailed
from strategies.rounds.records import from_array_record


class RoundAnalyst(Protocol):
    """What measures rounds while a run goes on."""

    def begin(self, strategy: ClientStrategy, arrays: Arrays, first_round: int) -> None:
        """Take what the first round starts from."""

    def end_of_round(self, server_round: int, arrays: Arrays) -> Mapping[str, Any]:
        """Measure a round if it is due, and return its figures."""

    def summary(self) -> dict[str, Any]:
        """Return what the summary says of the measures."""


class Recorder:
    """Evaluates, prints, logs and saves the rounds of one run."""

    def __init__(
        self,
        run: RunDirectory,
        config: RunConfig,
        node: Node,
        started: float,
        analyst: RoundAnalyst,
    ) -> None:
        """Note the partition; `started` is the monotonic time at which the ServerApp began."""
        self.run, self.config, self.node = run, config, node
        self.started = started
        self._last: Arrays = {}
        self._unwritten: list[dict[str, Any]] = []  # rounds that metrics.jsonl has not got yet
        self.analyst = analyst
        run.write_partition(*node.class_counts())
        self.tracker = open_tracker(config.tracker, run)

    def begin(self, strategy: ClientStrategy, first_round: int, arrays: ArrayRecord) -> None:
        """Start the clock of the rounds, which start from the model `arrays`."""
        self._last = from_array_record(arrays)
        self.analyst.begin(strategy, self._last, first_round)
        self.strategy, self.first_round = strategy, first_round
        self.round_started = self.rounds_started = time.monotonic()
        config = self.config
        print(
            f"{config.method} on {config.dataset} with {self.node.title}: rounds {first_round}-"
            f"{config.num_rounds}, lr {config.lr:g}, {config.local_epochs} local epochs, "
            f"device {self.node.device}, run directory {self.run.path}",
            flush=True,
        )
        if self.node.keeps:
            size, where = megabytes(self.node.state_bytes()), state_folder(config.state_dir)
            print(f"clients keep: {self.node.keeps}; up to {size} in {where}", flush=True)

    def end_of_round(self, server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        """Evaluate the new model when due, then print, log and save the round."""
        config = self.config
        self._last = from_array_record(arrays)
        last = server_round == config.num_rounds
        due = last or server_round % config.eval_every == 0
        row = self._row(server_round, self._evaluate(self._last) if due else None)
        now = time.monotonic()
        row["seconds"] = now - self.round_started
        self._log(row)
        elapsed = now - self.rounds_started
        line = progress.round_line(row, config.num_rounds, elapsed, first_round=self.first_round)
        print(line, flush=True)
        every = config.checkpoint_every
        refused = self.strategy.report.errors and not config.tolerate_failures  # to be done again
        if every and (server_round % every == 0 or last) and not refused:
            self._checkpoint(server_round)
        self.tracker.log(row)
        measured = self.analyst.end_of_round(server_round, self._last)
        self.tracker.log({"round": server_round, **measured})
        self.round_started = time.monotonic() if measured else now
        if row["accuracy"] is None or row["loss"] is None:
            return None
        return MetricRecord({"accuracy": row["accuracy"], "loss": row["loss"]})

    def check_last(self) -> None:
        """Raise `RoundFailed` if the last round left no figures to judge the run by.

        Its loss is not finite, or every client's evaluation failed. Clients that have no test
        images are no failure.
        """
        for row in self._rows()[-1:]:
            if row["accuracy"] is not None and row["loss"] is None:  # what JSON has for NaN
                raise RoundDiverged(f"the test loss is not finite after round {row['round']}")
            if row["accuracy"] is None and row.get("unevaluated"):
                report = self.strategy.report
                reason = f": {report.failures[-1].reason}" if report.failures else ""
                known = report.server_round == row["round"]  # else this process saw no round
                raise (report.failed if known else RoundFailed)(
                    f"no client could be evaluated after round {row['round']}{reason}"
                )

    def finish(self, status: str, reason: str = "", diverged: bool = False) -> None:
        """Write the summary, the model, the plots and the report, and print the summary.

        The status is "completed", "failed" (a round gave no model, or no finite loss at the end) or
        "interrupted" (by anything else: an interruption, an error in the program). A failed run has
        `diverged` if it ended because numbers were not finite: the same run again would end like
        it. A file that cannot be written is said, and the others are written.
        """
        self._log()
        rows = self._rows()
        summary = {
            **summarise(self.run, self.config, self.node, rows, status, reason),
            "seconds_total": time.monotonic() - self.started,
            **class_accuracy_measures(self.config.analyses, rows),
            **self.analyst.summary(),
            "diverged": diverged,
        }
        written("summary.json", lambda: self.run.write_summary(summary))
        written("model.safetensors", self._save_model)
        written("curves.png", lambda: self._write_curves(rows, summary["accuracy_of"]))
        written("plots of measures", lambda: write_plots(self.run))
        written("report.html", lambda: write_report(self.run.path))
        print(progress.summary_text(summary, self.run.path), flush=True)

    def close(self) -> None:
        """Flush and close the tracker, however the run ended."""
        self.tracker.close()

    def _log(self, *rows: dict[str, Any]) -> None:
        """Append rounds to metrics.jsonl; what a full disk does not take is tried again later."""
        self._unwritten += rows
        numbers = ", ".join(str(row["round"]) for row in self._unwritten)
        what = f"metrics.jsonl: round {numbers}"
        if self._unwritten and written(what, lambda: self.run.log_round(*self._unwritten)):
            self._unwritten = []

    def _rows(self) -> list[dict[str, Any]]:
        """Return all rounds as metrics.jsonl has them, or would have."""
        return [*self.run.rounds(), *map(plain, self._unwritten)]

    def _write_curves(self, rows: list[dict[str, Any]], tested: str) -> None:
        if rows:
            title = f"{self.config.method} on {self.config.dataset}"
            write_atomically(self.run.path / "curves.png", png(plots.curves(rows, title, tested)))

    def _row(self, server_round: int, evaluation: Evaluation | None) -> dict[str, Any]:
        """Return a round's line of metrics.jsonl."""
        report = self.strategy.report
        accuracy, loss = self._headline(evaluation)
        row: dict[str, Any] = {
            "round": server_round,
            "seconds": 0.0,
            "asked": report.asked,
            "clients": len(report.results),
            "failed": len(report.failures),
            "train_loss": report.train_loss,
            "accuracy": accuracy,
            "loss": loss,
            "bytes_down": report.bytes_down,
            "bytes_up": report.bytes_up,
            "client_bytes_down": report.client_bytes_down,
            "client_bytes_up": sum(result.payload for result in report.results),
            "images": sum(result.images for result in report.results),
            "lr": self.strategy.lr(server_round),
            "failures": [f"client {f.client}: {f.reason}" for f in report.failures],
            "class_accuracy": evaluation and evaluation.class_accuracy,
        }
        if report.eval_bytes_down:
            row["eval_bytes_down"] = report.eval_bytes_down
            row["eval_bytes_up"] = report.eval_bytes_up
        if afresh := [result.client for result in report.results if result.reinitialised]:
            row["reinitialised"] = afresh
        row |= {key.replace("-", "_"): value for key, value in report.client_accuracy.items()}
        row |= self.strategy.round_metrics()
        if self.node.method.accuracy != GLOBAL and report.unevaluated:
            row["unevaluated"] = report.unevaluated
        if evaluation is not None and self.node.method.accuracy != GLOBAL:
            row |= {"global_accuracy": evaluation.accuracy, "global_loss": evaluation.loss}
        return row

    def _headline(self, evaluation: Evaluation | None) -> tuple[float | None, float | None]:
        """Return the round's accuracy and loss, of the model or models that the method is about."""
        if evaluation is not None and self.node.method.accuracy == GLOBAL:
            return evaluation.accuracy, evaluation.loss
        clients = self.strategy.report.client_accuracy
        if self.node.method.accuracy == GLOBAL or not clients:
            return None, None
        kind = "mean" if self.node.method.accuracy == CLIENT_MEAN else "total"
        return clients[f"client-accuracy-{kind}"], clients.get(f"client-loss-{kind}")

    def _evaluate(self, arrays: Arrays) -> Evaluation | None:
        """Test the model that the method evaluates; None if it has no global model to test."""
        if self.node.method.accuracy != GLOBAL and not self.node.method.fine_tuned:
            return None
        load_arrays(self.node.workplace.shared, self.strategy.model_to_evaluate(arrays))
        batches = self.node.test_batches()
        return evaluate_classes(self.node.model, batches, self.node.dataset.num_classes)

    def _checkpoint(self, server_round: int) -> None:
        """Save a checkpoint; a full disk is reported and does not end the run."""
        saved = checkpoint.Checkpoint(
            server_round,
            self.config.fingerprint(),
            self._last,
            self.strategy.save(),
        )
        folder, keep = self.run.checkpoints, self.config.checkpoint_keep
        what = f"checkpoint of round {server_round}"
        written(what, lambda: checkpoint.save(folder, saved, keep))

    def _save_model(self) -> None:
        """Save the model after the last round that ended, the one that the method evaluates.

        It is loaded anew: that round may not have been evaluated, or not have run in this process.
        """
        load_arrays(self.node.workplace.shared, self.strategy.model_to_evaluate(self._last))
        config, data = self.config, self.node.dataset
        metadata = {
            "method": config.method,
            "model": self.node.title,
            "dataset": config.dataset,
            "classes": " ".join(data.classes),
            "fedapp": fedapp.__version__,
        }
        tensors = self.node.model.state_dict() if self.node.personal is None else self._held()
        self.run.save_model(tensors, metadata)

    def _held(self) -> dict[str, torch.Tensor]:
        """Return what the server holds where models stay with the clients: prototypes, a header."""
        held = {**self._last, **self.strategy.state()}
        return {name: torch.from_numpy(array) for name, array in held.items()}
