"""Measures of models during a run, which the key `analyses` selects.

The server trains the round's clients again in its own process, so it needs the clients' data and
stored states. In a simulation it always has them. Otherwise use `fedapp analyse` on a machine that
has them.
"""

import logging
from typing import Any

from fedapp.analysis.rounds import RoundModels, Start, cohort_of, cost_sentence, measure_round
from fedapp.config.measures import measures_of_models
from fedapp.core.errors import UserError
from fedapp.core.files import try_write
from fedapp.results import measures_file
from fedapp.results.folders import writing
from fedapp.results.trackers import Tracker
from fedapp.runtime.callbacks.base import ActiveRun, Callback

log = logging.getLogger(__name__)


class Measures(Callback):
    """Keeps the start of a round, and measures the round if it is due."""

    def __init__(self, analyses: str, tracker: Tracker) -> None:
        """Take the value of the key `analyses`, and a tracker that also gets the results."""
        self.words, self.tracker = measures_of_models(analyses), tracker

    def run_begins(self, run: ActiveRun) -> None:
        """Keep the start of the first round; remove later rounds from analysis.json."""
        self._keep_start(run)
        with writing(run.directory.path):
            measures_file.truncate(run.directory, run.first_round - 1)

    def round_ends(self, run: ActiveRun, row: dict[str, Any]) -> None:
        """Measure the round if it is due, and log the cost.

        If a round cannot be measured, the reason is logged and training continues.
        """
        start, number = self.start, row["round"]
        self._keep_start(run)
        every = run.config.analysis_every
        due = number == run.last_round or (every and number % every == 0)
        if start is None or not due:
            return
        models = RoundModels(
            number, start, run.strategy.model_to_evaluate(run.arrays),
            cohort_of(run.config, number, run.config.analysis_clients), run.config.lr_at(number),
        )  # fmt: skip
        try:
            entry = measure_round(run.process, models, self.words)
        except UserError as error:
            log.info(f"analysis of round {number} is left out: {error}")
        else:
            what = f"analysis of round {number}"
            try_write(what, lambda: measures_file.add(run.directory, entry))
            log.info(cost_sentence(entry))
            self.tracker.log({"round": number, **measures_file.figures(entry)})

    def run_ends(self, run: ActiveRun, summary: dict[str, Any]) -> None:
        """Add the main results of the last measured round to the summary, by "measure/name"."""
        entries = measures_file.read(run.directory) if self.words else []
        if entries:
            summary["measures"] = measures_file.figures(entries[-1])

    def _keep_start(self, run: ActiveRun) -> None:
        """Keep the start of the next round, if there are measures."""
        self.start = Start.of(run.strategy, run.arrays) if self.words else None
