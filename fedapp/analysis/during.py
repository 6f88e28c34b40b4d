"""Measuring rounds while a run goes on, which the key `analyses` asks for.

The server trains the round's clients again in its own process, so it must have the clients' data:
always so in a simulation. Where it has not, measure on a machine that has, with `fedapp analyse`.
"""

from collections.abc import Mapping
from typing import Any

from fedapp.analysis import store
from fedapp.analysis.rounds import RoundModels, cost_sentence, measure_round
from fedapp.analysis.saved_runs import cohort_of
from fedapp.analysis.table import measures_of_models
from fedapp.analysis.views import Arrays
from fedapp.config import RunConfig
from fedapp.node import Node
from fedapp.results.run_directory import RunDirectory


class Analyst:
    """Keeps the model that a round started from, and measures the round when it is due."""

    def __init__(self, run: RunDirectory, config: RunConfig, node: Node) -> None:
        """Read what is to be measured."""
        self.run, self.config, self.node = run, config, node
        self.words = measures_of_models(config.analyses)
        self.received: Arrays = {}

    def begin(self, arrays: Arrays, first_round: int) -> None:
        """Take the model that the first round starts from; later rounds are forgotten."""
        self.received = arrays
        store.truncate(self.run, first_round - 1)

    def summary(self) -> dict[str, Any]:
        """Return the headline figures of the last measured round, by "measure/figure"."""
        entries = store.read(self.run) if self.words else []
        return {"measures": store.figures(entries[-1])} if entries else {}

    def end_of_round(self, server_round: int, arrays: Arrays) -> Mapping[str, Any]:
        """Measure the round if it is due, print what it cost, and return the headline figures."""
        received, self.received = self.received, arrays
        every = self.config.analysis_every
        last = server_round == self.config.num_rounds
        if not self.words or not (last or (every and server_round % every == 0)):
            return {}
        models = RoundModels(
            server_round, received, arrays,
            cohort_of(self.config, server_round, self.config.analysis_clients),
            self.config.lr_at(server_round),
        )  # fmt: skip
        entry = measure_round(self.node, models, self.words)
        store.add(self.run, entry)
        print(cost_sentence(entry), flush=True)
        return store.figures(entry)
