"""Who takes part in a run, what happened in a round, and why a round cannot give a model."""

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

import numpy as np

from strategies.aggregate import Arrays, UpdateRefused
from strategies.rounds.records import DIVERGED, ERROR, ClientFailure, ClientResult


class RoundFailed(RuntimeError):  # noqa: N818 - the round's verdict, shown to the user as it is
    """A round cannot give a model; the text names the round, the clients and the reasons."""


class RoundDiverged(RoundFailed):
    """A round cannot give a model because its numbers are not finite, not because of an error."""


@dataclass(frozen=True)
class Federation:
    """Who takes part: for every client its node and its number of training examples.

    The nodes of a `pool` can each host any client: there, `nodes` only says that a client exists.
    """

    nodes: Mapping[int, int]
    examples: Mapping[int, int]
    pool: Sequence[int] = ()

    def by_node(self, clients: list[int]) -> dict[int, list[int]]:
        """Return the given clients of each node that is to host some of them.

        A pool shares them so that its nodes have about equally many examples: the client with most
        goes first, and each to the node that has fewest.
        """
        found: dict[int, list[int]] = {}
        if not self.pool:
            for client in clients:
                found.setdefault(self.nodes[client], []).append(client)
            return found
        loads = dict.fromkeys(self.pool, 0)
        for client in sorted(clients, key=lambda c: (-self.examples[c], c)):
            node = min(self.pool, key=loads.__getitem__)
            loads[node] += self.examples[client]
            found.setdefault(node, []).append(client)
        return {node: sorted(hosted) for node, hosted in found.items()}

    def check(
        self,
        results: Sequence[ClientResult],
        failures: Sequence[ClientFailure],
        asked: Sequence[int],
    ) -> None:
        """Raise `UpdateRefused` unless a report speaks of exactly the clients that were asked.

        Its numbers must be finite, and the numbers of examples those that the nodes have named
        before the first round.
        """
        check_clients([r.client for r in results] + [f.client for f in failures], asked)
        for result in results:
            known = self.examples[result.client]
            if result.examples != known:
                raise UpdateRefused(f"it claims {result.examples} examples but has {known}")
            if not np.isfinite(astuple(result)).all():
                raise UpdateRefused("its training loss, or another of its numbers, is not finite")
            if result.squared_distance < 0:
                raise UpdateRefused(f"its squared distance is {result.squared_distance:g}")


@dataclass
class RoundReport:
    """What happened in one round of training; clients in ascending order."""

    server_round: int
    results: list[ClientResult] = field(default_factory=list)
    failures: list[ClientFailure] = field(default_factory=list)
    asked: int = 0  # clients
    bytes_down: int = 0  # of messages that train
    bytes_up: int = 0
    client_bytes_down: int = 0  # the arrays alone, as if every client had a message of its own
    eval_bytes_down: int = 0  # of messages that evaluate on the clients' own test splits
    eval_bytes_up: int = 0
    client_accuracy: dict[str, Any] = field(default_factory=dict)
    unevaluated: list[int] = field(default_factory=list)  # clients that were asked for an accuracy
    metrics: dict[str, float] = field(default_factory=dict)  # the method's own numbers, by name

    @property
    def train_loss(self) -> float:
        """Mean training loss of the usable clients, weighted by their examples."""
        total = sum(result.examples for result in self.results)
        return sum(r.loss * r.examples for r in self.results) / total if total else float("nan")

    @property
    def errors(self) -> list[ClientFailure]:
        """The failures that only a run that tolerates them goes on with."""
        return [failure for failure in self.failures if failure.kind == ERROR]

    def sort(self) -> None:
        """Put clients in ascending order, whatever the order of the replies."""
        self.results.sort(key=lambda result: result.client)
        self.failures.sort(key=lambda failure: failure.client)

    def check(self, min_replies: int, tolerate_failures: bool, may_be_empty: bool = False) -> None:
        """Raise `RoundFailed` on an error that is not tolerated or on too few usable clients.

        A round that `may_be_empty` needs none, if its clients have answered and more than one are
        not asked for.
        """
        self.check_errors(tolerate_failures)
        answered = any(failure.kind != ERROR for failure in self.failures)
        if may_be_empty and min_replies == 1 and answered:
            return
        if len(self.results) < min_replies:
            reasons = "; ".join(
                f"client {f.client} {f.kind}: {f.reason}" for f in self.failures[:3]
            )
            asked = len(self.results) + len(self.failures)
            raise self.failed(
                f"round {self.server_round} has {len(self.results)} usable updates of {asked} "
                f"and needs {min_replies} (min-replies): {reasons}"
            )

    def failed(self, sentence: str) -> RoundFailed:
        """Return the verdict on a round without a result: diverged if that is all its failures."""
        diverged = all(failure.kind == DIVERGED for failure in self.failures)
        return (RoundDiverged if diverged else RoundFailed)(sentence)

    def check_errors(self, tolerated: bool) -> None:
        """Raise `RoundFailed` on a client that failed with an error, unless that is tolerated."""
        if self.errors and not tolerated:
            first = self.errors[0]
            raise RoundFailed(
                f"client {first.client} failed in round {self.server_round}: {first.reason}"
            )


def check_clients(spoken: Sequence[int], asked: Sequence[int]) -> None:
    """Raise `UpdateRefused` unless a reply speaks of each client that was asked, once."""
    if sorted(spoken) != sorted(asked):
        raise UpdateRefused(f"it reports on clients {sorted(spoken)}, not {sorted(asked)}")


def check_finite(
    arrays: Arrays, server_round: int, what: str = "a model", advice: str = ""
) -> None:
    """Raise `RoundDiverged` unless every value of what a round has given is a finite number."""
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise RoundDiverged(
                f"round {server_round} gave {what} with non-finite values: '{name}'"
                + (f"; {advice}" if advice else "")
            )
