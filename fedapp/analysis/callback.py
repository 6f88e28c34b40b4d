"""Measuring rounds while a run goes on, which the key `analyses` asks for.

The server trains the round's clients again in its own process, so it must have the clients' data:
always so in a simulation. Where it has not, measure on a machine that has, with `fedapp analyse`.
The same holds for what clients keep between rounds.
"""

from collections.abc import Mapping
from typing import Any

from fedapp.analysis.measures.views import Arrays
from fedapp.analysis.rounds import RoundModels, Start, cost_sentence, measure_round
from fedapp.config.measures import measures_of_models
from fedapp.config.run_config import RunConfig
from fedapp.core.errors import UserError
from fedapp.core.files import written
from fedapp.results import measures_file as store
from fedapp.results.run_directory import RunDirectory
from fedapp.runtime.node import Node
from fedapp.runtime.strategy import cohort_of
from strategies.rounds.base import ClientStrategy


class Analyst:
    """Keeps what a round started from, and measures the round when it is due."""

    def __init__(self, run: RunDirectory, config: RunConfig, node: Node) -> None:
        """Read what is to be measured."""
        self.run, self.config, self.node = run, config, node
        self.words = measures_of_models(config.analyses)

    def begin(self, strategy: ClientStrategy, arrays: Arrays, first_round: int) -> None:
        """Take what the first round starts from; later rounds are forgotten."""
        self.strategy = strategy
        self._note(arrays)
        store.truncate(self.run, first_round - 1)

    def summary(self) -> dict[str, Any]:
        """Return the headline figures of the last measured round, by "measure/figure"."""
        entries = store.read(self.run) if self.words else []
        return {"measures": store.figures(entries[-1])} if entries else {}

    def end_of_round(self, server_round: int, arrays: Arrays) -> Mapping[str, Any]:
        """Measure the round if it is due, print what it cost, and return the headline figures.

        A round that cannot be measured is left out, in words: training goes on.
        """
        start = self.start
        self._note(arrays)
        every = self.config.analysis_every
        last = server_round == self.config.num_rounds
        if start is None or not (last or (every and server_round % every == 0)):
            return {}
        models = RoundModels(
            server_round, start, arrays,
            cohort_of(self.config, server_round, self.config.analysis_clients),
            self.config.lr_at(server_round),
        )  # fmt: skip
        try:
            entry = measure_round(self.node, models, self.words)
        except UserError as reason:
            print(f"analysis of round {server_round} is left out: {reason}", flush=True)
            return {}
        written(f"analysis of round {server_round}", lambda: store.add(self.run, entry))
        print(cost_sentence(entry), flush=True)
        return store.figures(entry)

    def _note(self, arrays: Arrays) -> None:
        """Keep what the next round starts from, if anything is to be measured."""
        self.start = Start.of(self.strategy, arrays) if self.words else None
