"""The interface of callbacks, which observe a run and do not change its training.

Evaluation, metrics.jsonl, checkpoints, trackers, measures and the report are callbacks
(`fedapp.runtime.callbacks.standard`). A user's callback is a class with the hooks that it needs;
the run-config key `callbacks` names it. fedapp's own may also end a run by a UserError: a count
of its noise, or a checkpoint, that cannot be written. Their order is that of the ServerApp.
"""

from dataclasses import dataclass, field
from typing import Any

from clients.training.arrays import load_arrays
from fedapp.config.run_config import RunConfig
from fedapp.core.files import to_json_types
from fedapp.results.run_directory import RunDirectory
from fedapp.runtime.process.context import ProcessContext
from strategies.aggregate import Arrays
from strategies.rounds.base import ClientStrategy

ENDINGS = (KeyboardInterrupt, SystemExit)  # a run was asked to end: Ctrl-C, SIGTERM by Flower


@dataclass
class ActiveRun:
    """The state of a run that its callbacks can access."""

    config: RunConfig
    directory: RunDirectory
    process: ProcessContext  # the server's data and model
    strategy: ClientStrategy
    first_round: int  # first round of this process; above 1 in a resumed run
    last_round: int  # of the run; a privacy budget may end it before num-rounds
    arrays: Arrays  # the newest global model by tensor name; the next round starts from it
    started: float  # monotonic time in seconds at the start of the ServerApp
    rounds_started: float  # the same at the start of the first round
    round_started: float  # the same at the start of the current round
    unwritten: list[dict[str, Any]] = field(default_factory=list)  # not yet in metrics.jsonl

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of all rounds as in metrics.jsonl, including those not yet written."""
        return [*self.directory.rounds(), *map(to_json_types, self.unwritten)]

    def load_evaluated(self) -> None:
        """Load the newest model that the method evaluates into the process's model."""
        load_arrays(self.process.slot.shared, self.strategy.model_to_evaluate(self.arrays))


class Callback:
    """Observes a run: subclasses override the hooks that they need; the other hooks do nothing.

    The server's process calls the callbacks one after the other. Values that a hook adds to `row`
    are written to metrics.jsonl and the trackers, those that it adds to `summary` to summary.json.
    """

    def run_begins(self, run: ActiveRun) -> None:
        """Act before the first round; `run.arrays` is the initial model of that round."""

    def round_ends(self, run: ActiveRun, row: dict[str, Any]) -> None:
        """Act after a round; `run.arrays` is the new global model.

        `row` is the round's line of metrics.jsonl: "round", "accuracy", "loss", "train_loss", ...
        """

    def run_ends(self, run: ActiveRun, summary: dict[str, Any]) -> None:
        """Act after the last round, also if the run failed, as `summary["status"]` tells."""

    def close(self) -> None:
        """Release resources, however the run ended, even before its first round."""
