"""Trackers: optional services that get the metrics in addition to metrics.jsonl."""

import logging
import math
import os
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any, Protocol

from fedapp.core.errors import UserError
from fedapp.results.run_directory import RunDirectory

log = logging.getLogger(__name__)
_PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow-skinny"}


class Tracker(Protocol):
    """Receives one row of metrics per round."""

    def log(self, row: Mapping[str, Any]) -> None:
        """Record the numbers of one round."""

    def close(self, summary: Mapping[str, Any]) -> None:
        """Record how the run ended, as in summary.json; empty if it did not begin."""


class NoTracker:
    """The default: only metrics.jsonl."""

    def log(self, row: Mapping[str, Any]) -> None:
        """Ignore the row."""

    def close(self, summary: Mapping[str, Any]) -> None:
        """Do nothing."""


class TensorBoardTracker:
    """Writes every number of a row as a TensorBoard scalar, in the run directory."""

    def __init__(self, run: RunDirectory) -> None:
        """Open the event file; raises UserError if TensorBoard is not installed."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise _missing("tensorboard") from None
        self._open = partial(SummaryWriter, str(run.path / "tensorboard"))
        self.writer: Any = None

    def log(self, row: Mapping[str, Any]) -> None:
        """Write the row's numbers at its round.

        A resumed run's first row hides the rounds from there on that an earlier process wrote.
        """
        if self.writer is None:
            self.writer = self._open(purge_step=row["round"])
        for key, value in numbers(row).items():
            self.writer.add_scalar(key, value, row["round"])

    def close(self, summary: Mapping[str, Any]) -> None:
        """Flush and close the event file, which has rounds only."""
        if self.writer is not None:
            self.writer.close()


class WandbTracker:
    """Logs to Weights & Biases, in the project "fedapp"; WANDB_... variables configure it."""

    def __init__(self, run: RunDirectory) -> None:
        """Start a run of the same name; raises UserError if wandb is not installed."""
        try:
            import wandb
        except ImportError:
            raise _missing("wandb") from None
        try:
            self.run = wandb.init(
                project="fedapp", name=run.name, dir=str(run.path), config=dict(run.config())
            )
        except wandb.Error as error:
            raise _refused("wandb", error, "WANDB_API_KEY, or WANDB_MODE=offline") from None

    def log(self, row: Mapping[str, Any]) -> None:
        """Log the row's numbers at its round."""
        self.run.log(numbers(row), step=row["round"])

    def close(self, summary: Mapping[str, Any]) -> None:
        """End the run with its results; one that has not completed counts as failed."""
        self.run.summary.update({**_end(summary), **numbers(summary)})
        self.run.finish(exit_code=int(summary.get("status") != "completed"))


class MlflowTracker:
    """Logs to MLflow at MLFLOW_TRACKING_URI, by default to mlruns beside the run directory."""

    def __init__(self, run: RunDirectory) -> None:
        """Start a run of the same name; raises UserError if mlflow is not installed."""
        try:
            import mlflow
        except ImportError:
            raise _missing("mlflow") from None
        self.mlflow = mlflow
        if not os.environ.get("MLFLOW_TRACKING_URI"):
            # MLflow's default is the working directory, which may be removed after the run.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            mlflow.set_tracking_uri((run.path.parent / "mlruns").as_uri())
        try:
            mlflow.set_experiment("fedapp")
            mlflow.start_run(run_name=run.name)
            mlflow.log_params(dict(run.config()))
        except mlflow.exceptions.MlflowException as error:
            raise _refused("mlflow", error, "MLFLOW_TRACKING_URI") from None

    def log(self, row: Mapping[str, Any]) -> None:
        """Log the row's numbers at its round."""
        self.mlflow.log_metrics(numbers(row), step=row["round"])

    def close(self, summary: Mapping[str, Any]) -> None:
        """End the run with its results and its status."""
        self.mlflow.set_tags(_end(summary))
        self.mlflow.log_metrics(numbers(summary))
        ends = {"completed": "FINISHED", "interrupted": "KILLED"}
        self.mlflow.end_run(ends.get(str(summary.get("status")), "FAILED"))


class SafeTracker:
    """Wraps a tracker: reports its first failure and never stops the run.

    After a failure the tracker gets no more rows, because its library may retry for minutes in
    every round.
    """

    def __init__(self, name: str, tracker: Tracker) -> None:
        """Wrap a tracker, which is `name` in the configuration."""
        self.name, self.tracker, self.lost = name, tracker, False

    def log(self, row: Mapping[str, Any]) -> None:
        """Pass the numbers of one round to the tracker."""
        if not self.lost:
            self._try(lambda: self.tracker.log(row))

    def close(self, summary: Mapping[str, Any]) -> None:
        """Record how the run ended."""
        self._try(lambda: self.tracker.close(summary))

    def _try(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:
            reason = " ".join(str(error).split()) or repr(error)
            if not self.lost:
                message = "tracker '%s' gets no more: %s; metrics.jsonl has all rounds"
                log.warning(message, self.name, reason)
            self.lost = True


def _end(summary: Mapping[str, Any]) -> dict[str, str]:
    """Return how a run ended, and why if it has not completed."""
    return {key: str(summary[key]) for key in ("status", "reason") if summary.get(key)}


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite numbers of a row, without the round number."""
    return {
        key: value
        for key, value in row.items()
        if isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and key != "round"
    }


TRACKERS: dict[str, Callable[[RunDirectory], Tracker]] = {
    "none": lambda run: NoTracker(),
    "tensorboard": TensorBoardTracker,
    "wandb": WandbTracker,
    "mlflow": MlflowTracker,
}


def open_tracker(name: str, run: RunDirectory) -> Tracker:
    """Return the tracker of this name; raises UserError if its package is missing."""
    return SafeTracker(name, TRACKERS[name](run))


def check_tracker(name: str) -> None:
    """Raise UserError if the package of a tracker is not installed; imports nothing."""
    if name in _PACKAGES and find_spec(name) is None:
        raise _missing(name)


def _refused(tracker: str, error: Exception, setting: str) -> UserError:
    reason = " ".join(str(error).split())
    return UserError(f"tracker '{tracker}' cannot start: {reason}; set {setting}")


def _missing(tracker: str) -> UserError:
    return UserError(
        f"tracker '{tracker}' needs the package {_PACKAGES[tracker]}: pip install -e '.[{tracker}]'"
    )
