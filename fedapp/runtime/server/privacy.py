"""The privacy budget during a run: counted before every round, and never exceeded."""

import logging
from typing import Any

from clients.state.store import sync_folder
from fedapp.config.privacy import Budget
from fedapp.core.errors import UserError
from fedapp.results.run_directory import RunDirectory
from fedapp.runtime.callbacks.base import ActiveRun, Callback
from strategies.rounds.base import ClientStrategy
from strategies.secure.messages import threshold_of
from strategies.secure.rounds import SecureRounds

log = logging.getLogger(__name__)


class PrivacyBudget(Callback):
    """Counts every noisy model that the run may have released, also those of repeated rounds.

    A round is counted on disk before it begins, because its model can leave the server before the
    round ends: for the evaluation on clients. After an interruption a run repeats the rounds since
    its last checkpoint with new noise, and both models count.
    """

    def __init__(self, budget: Budget) -> None:
        """Count the rounds of a run with this budget."""
        self.budget, self.releases = budget, 0

    def run_begins(self, run: ActiveRun) -> None:
        """Continue the count of an earlier process, and count the first round."""
        self.releases = released(self.budget, run.directory, run.first_round)
        if run.first_round <= run.last_round:
            self._count(run.directory)

    def round_ends(self, run: ActiveRun, row: dict[str, Any]) -> None:
        """Add epsilon to the row, and count the next round."""
        row["epsilon"] = self.budget.epsilon(self.releases)
        if row["round"] < run.last_round:
            self._count(run.directory)

    def run_ends(self, run: ActiveRun, summary: dict[str, Any]) -> None:
        """Add what the run has spent to the summary."""
        summary["epsilon"] = self.budget.epsilon(self.releases)
        summary["delta"], summary["dp_noise"] = self.budget.delta, self.budget.noise

    def _count(self, directory: RunDirectory) -> None:
        self.releases += 1
        try:
            directory.write_privacy(self.releases, self.budget.terms())
            sync_folder(directory.path)  # the count must survive a power failure
        except OSError as error:
            raise UserError(
                f"the run ends because {directory.path}/privacy.json cannot be written "
                f"({error.strerror}): what is not counted could be released"
            ) from None


def released(budget: Budget, directory: RunDirectory, first_round: int) -> int:
    """Return how many noisy models earlier processes of a run may have released.

    Raises:
        UserError: they had other noise or sampling, which one budget cannot count.
    """
    known = directory.privacy()
    for name, value in budget.terms().items():
        if known and known.get(name) != value:
            raise UserError(
                f"the earlier rounds of {directory.path} count with {name} {known.get(name)}, this "
                f"configuration has {value}: continue with the run's own, or start a new run"
            )
    return max(int(known.get("releases", 0)), first_round - 1)


def last_round(
    budget: Budget | None, directory: RunDirectory, first_round: int, planned: int
) -> int:
    """Return the last round that the budget allows, at most the planned one.

    It is before `first_round` for a resumed run that has spent its budget.

    Raises:
        UserError: the budget does not allow the first round of a run.
    """
    if budget is None or first_round > planned:
        return planned
    releases = released(budget, directory, first_round)
    wanted = releases + planned - first_round + 1
    last = max(first_round - 1 + budget.affordable(wanted) - releases, first_round - 1)
    if last < 1:
        raise UserError(
            f"round 1 would exceed dp-epsilon {budget.limit:g} at dp-noise {budget.noise:g}: it "
            f"spends {budget.epsilon(releases + 1):.3g}"
        )
    if last < planned:
        log.warning(
            "dp-epsilon %g allows %d of %d rounds: the run ends after them",
            budget.limit, last, planned,
        )  # fmt: skip
    return last


def last_of_nodes(strategy: ClientStrategy, first_round: int, planned: int) -> int:
    """Return the last round that the nodes' own limits allow, at most the planned one.

    A strategy that tolerates failures goes on while as many nodes of a round as must stay are left.

    Raises:
        UserError: the first round of a run is not allowed.
    """
    left = dict(strategy.federation.rounds_left)
    if not left or not isinstance(strategy, SecureRounds):
        return planned
    for server_round in range(first_round, planned + 1):
        nodes = list(strategy.federation.by_node(strategy.cohort(server_round)))
        spent = [node for node in nodes if left.get(node) == 0]
        may_miss = len(nodes) - threshold_of(len(nodes), strategy.secure_threshold)
        if len(spent) > (may_miss if strategy.tolerate_failures else 0):
            if server_round == 1:
                raise UserError(
                    f"round 1 would exceed the limit that node {spent[0]} has set for epsilon "
                    "(privacy-epsilon): more noise, or a larger limit there, allows it"
                )
            log.warning(
                "node %d has a limit of epsilon (privacy-epsilon), and %d rounds left of it: the "
                "run ends after round %d of %d",
                spent[0], strategy.federation.rounds_left[spent[0]], server_round - 1, planned,
            )  # fmt: skip
            return server_round - 1
        left.update({node: left[node] - 1 for node in nodes if left.get(node)})
    return planned
