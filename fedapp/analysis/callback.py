"""Measuring rounds while a run goes on, which the key `analyses` asks for.

The server trains the round's clients again in its own process, so it must have the clients' data:
always so in a simulation. Where it has not, measure on a machine that has, with `fedapp analyse`.
The same holds for what clients keep between rounds.
"""

import logging
import time
from typing import Any

from fedapp.analysis.rounds import RoundModels, Start, cost_sentence, measure_round
from fedapp.config.measures import measures_of_models
from fedapp.core.errors import UserError
from fedapp.core.files import written
from fedapp.results import measures_file
from fedapp.results.trackers import Tracker
from fedapp.runtime.callback import ActiveRun, Callback
from fedapp.runtime.strategy import cohort_of

log = logging.getLogger(__name__)


class Measures(Callback):
    """Keeps what a round started from, and measures the round when it is due."""

    def __init__(self, analyses: str, tracker: Tracker) -> None:
        """Take the words of the key `analyses`, and where figures go beside analysis.json."""
        self.words, self.tracker = measures_of_models(analyses), tracker

    def run_begins(self, run: ActiveRun) -> None:
        """Take what the first round starts from; later rounds are forgotten."""
        self._note(run)
        measures_file.truncate(run.directory, run.first_round - 1)

    def round_ends(self, run: ActiveRun, row: dict[str, Any]) -> None:
        """Measure the round if it is due, and print what it cost.

        A round that cannot be measured is left out, and the reason is printed: training goes on.
        """
        start, number = self.start, row["round"]
        self._note(run)
        every = run.config.analysis_every
        if start is None or not (number == run.last_round or (every and number % every == 0)):
            return
        models = RoundModels(
            number, start, run.arrays,
            cohort_of(run.config, number, run.config.analysis_clients), run.config.lr_at(number),
        )  # fmt: skip
        try:
            entry = measure_round(run.process, models, self.words)
        except UserError as reason:
            log.info(f"analysis of round {number} is left out: {reason}")
            return
        written(f"analysis of round {number}", lambda: measures_file.add(run.directory, entry))
        log.info(cost_sentence(entry))
        self.tracker.log({"round": number, **measures_file.figures(entry)})
        run.round_started = time.monotonic()  # its time is not the next round's

    def run_ends(self, run: ActiveRun, summary: dict[str, Any]) -> None:
        """Add the headline figures of the last measured round, by "measure/figure"."""
        entries = measures_file.read(run.directory) if self.words else []
        if entries:
            summary["measures"] = measures_file.figures(entries[-1])

    def _note(self, run: ActiveRun) -> None:
        """Keep what the next round starts from, if anything is to be measured."""
        self.start = Start.of(run.strategy, run.arrays) if self.words else None
