"""The privacy budget during a run: counted after every round, and never exceeded."""

import logging
from typing import Any

from fedapp.config.privacy import Budget
from fedapp.core.errors import UserError
from fedapp.core.files import try_write
from fedapp.results.run_directory import RunDirectory
from fedapp.runtime.callback import ActiveRun, Callback

log = logging.getLogger(__name__)


class PrivacyBudget(Callback):
    """Counts every noisy model that the run releases, also those of rounds that are repeated.

    After an interruption a run repeats the rounds since its last checkpoint with new noise. Clients
    have seen both models, so both count.
    """

    def __init__(self, budget: Budget, directory: RunDirectory) -> None:
        """Continue the count of an earlier process of the same run."""
        self.budget, self.releases = budget, directory.releases()

    def round_ends(self, run: ActiveRun, row: dict[str, Any]) -> None:
        """Count the round's model before it leaves the server, and add epsilon to the row."""
        self.releases += 1
        try_write("privacy.json", lambda: run.directory.write_releases(self.releases))
        row["epsilon"] = self.budget.epsilon(self.releases)

    def run_ends(self, run: ActiveRun, summary: dict[str, Any]) -> None:
        """Add what the run has spent to the summary."""
        summary["epsilon"] = self.budget.epsilon(self.releases)
        summary["delta"], summary["dp_noise"] = self.budget.delta, self.budget.noise


def last_round(budget: Budget | None, releases: int, first_round: int, planned: int) -> int:
    """Return the last round that the budget allows, at most the planned one.

    Raises:
        UserError: the budget does not allow one more round.
    """
    if budget is None or first_round > planned:
        return planned
    wanted = releases + planned - first_round + 1
    last = first_round - 1 + budget.affordable(wanted) - releases
    if last < first_round:
        raise UserError(
            f"round {first_round} would exceed dp-epsilon {budget.limit:g}: the run has spent "
            f"{budget.epsilon(releases):.3g}"
        )
    if last < planned:
        log.warning(
            "dp-epsilon %g allows %d of %d rounds: the run ends after them",
            budget.limit, last, planned,
        )  # fmt: skip
    return last
