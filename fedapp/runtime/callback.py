"""The interface of everything that watches a run and does not change its training.

Evaluation, metrics.jsonl, checkpoints, trackers, measures and the report are callbacks
(`fedapp.runtime.callbacks`). A user's own is a class with the hooks that it needs, named by the
run-config key `callbacks`.
"""

from dataclasses import dataclass, field
from typing import Any

from fedapp.config.run_config import RunConfig
from fedapp.core.files import plain
from fedapp.results.run_directory import RunDirectory
from fedapp.runtime.process import ProcessContext
from strategies.aggregate import Arrays
from strategies.rounds.base import ClientStrategy


@dataclass
class ActiveRun:
    """What callbacks see of the run that they watch."""

    config: RunConfig
    directory: RunDirectory
    process: ProcessContext  # the server's data and model
    strategy: ClientStrategy
    first_round: int  # that this process runs; above 1 in a resumed run
    arrays: Arrays  # the newest global model, by tensor name: what the next round starts from
    started: float  # monotonic seconds at which the ServerApp began
    rounds_started: float  # the same for the first round
    round_started: float  # the same for the round that goes on
    unwritten: list[dict[str, Any]] = field(default_factory=list)  # not yet in metrics.jsonl

    @property
    def last_round(self) -> int:
        """The number of the run's last round."""
        return self.config.num_rounds

    def rows(self) -> list[dict[str, Any]]:
        """Return all rounds as metrics.jsonl has them or would have, earlier processes' too."""
        return [*self.directory.rounds(), *map(plain, self.unwritten)]


class Callback:
    """Watches a run: override the hooks that are needed; the others do nothing.

    Callbacks are called one after the other, in the server's process. What a hook adds to `row` or
    `summary` is written to metrics.jsonl, the trackers and summary.json.
    """

    def run_begins(self, run: ActiveRun) -> None:
        """Act before the first round; `run.arrays` is the model that it starts from."""

    def round_ends(self, run: ActiveRun, row: dict[str, Any]) -> None:
        """Act after a round; `run.arrays` is the new global model.

        `row` is the round's line of metrics.jsonl: "round", "accuracy", "loss", "train_loss", ...
        """

    def run_ends(self, run: ActiveRun, summary: dict[str, Any]) -> None:
        """Act after the last round, also of a run that failed: see `summary["status"]`."""

    def close(self) -> None:
        """Release what is held, however the run ended, also before its first round."""
