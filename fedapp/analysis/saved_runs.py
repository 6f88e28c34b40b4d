"""Measure a finished run from the models in its directory.

A round can be measured if its start is known: a checkpoint of the round before, the initial model
(computed from the seed), or the final model, whose next round was never run but is well defined. If
clients keep states, these must also exist.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from clients.training.arrays import to_arrays
from fedapp.analysis.measures.table import MEASURES
from fedapp.analysis.rounds import RoundModels, Start, cohort_of, measure_round
from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError
from fedapp.results import checkpoint
from fedapp.results import measures_file as store
from fedapp.results.final_model import has_model, read_model
from fedapp.results.run_directory import RunDirectory
from fedapp.runtime.process.earlier_run import check_extension, reopened
from fedapp.runtime.server.strategy import build_strategy, restore
from strategies.rounds.base import ClientStrategy
from strategies.rounds.federation import Federation

Starts = dict[int, Callable[[], Start]]  # by the previous round


class SavedRun:
    """A run directory whose rounds can be measured."""

    def __init__(self, run: RunDirectory, overrides: Mapping[str, Any] | None = None) -> None:
        """Load the run's data and build its model; raises UserError if that fails.

        `overrides` has values of keys that may differ from those of the run, such as data-dir.
        """
        self.run = run
        check_extension(run)
        self.config = parse_config({**run.config(), **(overrides or {})})
        self.process = reopened(run, self.config)
        initial = to_arrays(self.process.slot.shared)
        key = run.state_key() if self.process.keeps else ""
        self.starts: Starts = {0: lambda: Start(initial, state_key=key), **self._saved()}

    def _saved(self) -> Starts:
        """Find the final model and the checkpoints; a checkpoint has precedence.

        Some methods evaluate and save a model from which training does not continue. This model is
        not the start of a round.
        """
        starts: Starts = {}
        missing = "the server's state" if self.process.keeps else ""
        rows = self.run.rounds()
        saves_trained_model = (
            self.process.method.server.kind.model_to_evaluate is ClientStrategy.model_to_evaluate
        )
        if has_model(self.run) and rows and saves_trained_model:
            starts[rows[-1]["round"]] = lambda: Start(read_model(self.run), missing=missing)
        for number, path in checkpoint.by_round(self.run.checkpoints).items():
            starts[number] = partial(self._checkpoint, path)
        return starts

    def _checkpoint(self, path: Path) -> Start:
        """Return the start of the round after a checkpoint, from its strategy."""
        saved = checkpoint.load(path, self.config.fingerprint())
        strategy = build_strategy(
            self.config, self.process, Federation({}, {}), self.run.state_key()
        )
        restore(strategy, saved, to_arrays(self.process.slot.shared), path)
        return Start.of(strategy, saved.arrays)

    def measurable(self) -> list[int]:
        """Return the rounds with known start and result, else the round after the newest model."""
        both = [number for number in self.starts if number and number - 1 in self.starts]
        return sorted(both) or [max(self.starts) + 1]

    def measure(self, server_round: int, words: Sequence[str], clients: int) -> dict[str, Any]:
        """Measure a round with up to `clients` of its clients (0: all), and store the results.

        Raises:
            UserError: the model at the start of the round is unknown, or its local models need
                training with learning rate 0.
        """
        if server_round - 1 not in self.starts:
            known = ", ".join(str(number + 1) for number in sorted(self.starts))
            raise UserError(
                f"round {server_round} of {self.run.path} cannot be measured: the model of round "
                f"{server_round - 1} was not kept (known: rounds {known}); run with "
                "checkpoint-every=1 checkpoint-keep=0 to keep all"
            )
        if float(self.config.dp_noise):
            raise UserError(
                f"the rounds of {self.run.path} cannot be measured: dp-noise hides the local "
                "models of a run"
            )
        lr = self._lr(server_round, words)
        result = self.starts.get(server_round)
        cohort = cohort_of(self.config, server_round, clients)
        models = RoundModels(
            server_round,
            self.starts[server_round - 1](),
            result and result().tested,
            cohort,
            lr,
        )
        entry = measure_round(self.process, models, words)
        store.add(self.run, entry)
        return entry

    def _lr(self, server_round: int, words: Sequence[str]) -> float:
        """Return the rate of a round: the run's own, else, if it was never run, the schedule's.

        The schedule of a resumed run may now be that of more rounds.
        """
        rates = {row["round"]: row["lr"] for row in self.run.rounds() if "lr" in row}
        lr = float(rates.get(server_round, self.config.lr_at(server_round)))
        if not lr and any(MEASURES[word].local for word in words):
            known = ", ".join(str(n + 1) for n in sorted(self.starts) if n + 1 != server_round)
            raise UserError(
                f"round {server_round} of {self.run.path} has learning rate 0 (lr-schedule "
                f"'{self.config.lr_schedule}'), so nothing would be trained: measure an earlier "
                f"round (known: rounds {known}), or run with checkpoint-every=1 checkpoint-keep=0 "
                "to keep all"
            )
        return lr
