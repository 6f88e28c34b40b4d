"""Where metrics go beside metrics.jsonl: an optional tracker that people already look at."""

import logging
import math
import os
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from fedapp.core.errors import UserError
from fedapp.results.run_directory import RunDirectory

log = logging.getLogger(__name__)


class Tracker(Protocol):
    """Takes one row of metrics per round."""

    def log(self, row: Mapping[str, Any]) -> None:
        """Take the numbers of one round."""

    def close(self) -> None:
        """Flush what was logged."""


class NoTracker:
    """The default: metrics.jsonl alone."""

    def log(self, row: Mapping[str, Any]) -> None:
        """Ignore the row."""

    def close(self) -> None:
        """Do nothing."""


class TensorBoardTracker:
    """Writes every number of a row as a TensorBoard scalar, in the run directory."""

    def __init__(self, run: RunDirectory) -> None:
        """Open the event file; raises UserError when TensorBoard is not installed."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise _missing("tensorboard", "tensorboard") from None
        self.writer = SummaryWriter(str(run.path / "tensorboard"))

    def log(self, row: Mapping[str, Any]) -> None:
        """Write the row's numbers at its round."""
        for key, value in numbers(row).items():
            self.writer.add_scalar(key, value, row["round"])

    def close(self) -> None:
        """Flush and close the event file."""
        self.writer.close()


class WandbTracker:
    """Logs to Weights & Biases, in the project "fedapp"; its own environment variables rule."""

    def __init__(self, run: RunDirectory) -> None:
        """Start a run of the same name; raises UserError when wandb is not installed."""
        try:
            import wandb
        except ImportError:
            raise _missing("wandb", "wandb") from None
        try:
            self.run = wandb.init(
                project="fedapp", name=run.name, dir=str(run.path), config=dict(run.config())
            )
        except wandb.Error as problem:
            raise _refused("wandb", problem, "WANDB_API_KEY, or WANDB_MODE=offline") from None

    def log(self, row: Mapping[str, Any]) -> None:
        """Log the row's numbers at its round."""
        self.run.log(numbers(row), step=row["round"])

    def close(self) -> None:
        """End the run, which sends what is left."""
        self.run.finish()


class MlflowTracker:
    """Logs to MLflow, to where MLFLOW_TRACKING_URI points; without it, to mlruns beside the run."""

    def __init__(self, run: RunDirectory) -> None:
        """Start a run of the same name; raises UserError when mlflow is not installed."""
        try:
            import mlflow
        except ImportError:
            raise _missing("mlflow", "mlflow-skinny") from None
        self.mlflow = mlflow
        if not os.environ.get("MLFLOW_TRACKING_URI"):
            # Its own choice is the working directory, which may be removed after the run.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            mlflow.set_tracking_uri((run.path.parent / "mlruns").as_uri())
        try:
            mlflow.set_experiment("fedapp")
            mlflow.start_run(run_name=run.name)
            mlflow.log_params(dict(run.config()))
        except mlflow.exceptions.MlflowException as problem:
            raise _refused("mlflow", problem, "MLFLOW_TRACKING_URI") from None

    def log(self, row: Mapping[str, Any]) -> None:
        """Log the row's numbers at its round."""
        self.mlflow.log_metrics(numbers(row), step=row["round"])

    def close(self) -> None:
        """End the run."""
        self.mlflow.end_run()


class SafeTracker:
    """A tracker whose troubles cost its own numbers, not the run; they are said once.

    After the first it gets no more: its library may have tried for minutes, and would every round.
    """

    def __init__(self, name: str, tracker: Tracker) -> None:
        """Stand before a tracker, called `name` in the configuration."""
        self.name, self.tracker, self.lost = name, tracker, False

    def log(self, row: Mapping[str, Any]) -> None:
        """Pass the numbers of one round on."""
        if not self.lost:
            self._try(lambda: self.tracker.log(row))

    def close(self) -> None:
        """Flush what was logged."""
        self._try(self.tracker.close)

    def _try(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as problem:
            reason = " ".join(str(problem).split()) or repr(problem)
            if not self.lost:
                lost = "tracker '%s' gets no more: %s; metrics.jsonl has all rounds"
                log.warning(lost, self.name, reason)
            self.lost = True


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """Return what of a row a tracker can draw: its finite numbers, without the round itself."""
    return {
        key: value
        for key, value in row.items()
        if isinstance(value, int | float) and math.isfinite(value) and key != "round"
    }


TRACKERS: dict[str, Callable[[RunDirectory], Tracker]] = {
    "none": lambda run: NoTracker(),
    "tensorboard": TensorBoardTracker,
    "wandb": WandbTracker,
    "mlflow": MlflowTracker,
}


def open_tracker(name: str, run: RunDirectory) -> Tracker:
    """Return the tracker a configuration names; raises UserError if its package is missing."""
    return SafeTracker(name, TRACKERS[name](run))


def _refused(tracker: str, problem: Exception, setting: str) -> UserError:
    reason = " ".join(str(problem).split())
    return UserError(f"tracker '{tracker}' cannot start: {reason}; set {setting}")


def _missing(tracker: str, package: str) -> UserError:
    return UserError(
        f"tracker '{tracker}' needs the package {package}: pip install -e '.[{tracker}]'"
    )
