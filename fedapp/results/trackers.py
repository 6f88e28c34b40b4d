"""Where metrics go beside metrics.jsonl: an optional tracker that people already look at."""

from collections.abc import Mapping
from typing import Any, Protocol

from fedapp.errors import UserError
from fedapp.results.run_directory import RunDirectory


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
            raise UserError(
                "tracker 'tensorboard' needs the package tensorboard: "
                "pip install 'fedapp[tensorboard]'"
            ) from None
        self.writer = SummaryWriter(str(run.path / "tensorboard"))

    def log(self, row: Mapping[str, Any]) -> None:
        """Write the row's numbers at its round."""
        for key, value in row.items():
            if isinstance(value, int | float) and key != "round":
                self.writer.add_scalar(key, value, row["round"])

    def close(self) -> None:
        """Flush and close the event file."""
        self.writer.close()


def open_tracker(name: str, run: RunDirectory) -> Tracker:
    """Return the tracker a configuration names."""
    return TensorBoardTracker(run) if name == "tensorboard" else NoTracker()
