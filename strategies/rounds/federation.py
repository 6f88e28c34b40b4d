"""The clients and nodes of a run, the report of a round, and the errors of a failed round."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from statistics import fmean
from typing import Any

import numpy as np
from flwr.app import ArrayRecord

from strategies.aggregate import Arrays, UpdateRefused
from strategies.rounds.records import DIVERGED, ERROR, LATE, ClientFailure, ClientResult


class RoundFailed(RuntimeError):  # noqa: N818 - an outcome of the round, shown to the user
    """A round gives no model; the message names the round, the clients and the reasons."""


class RoundDiverged(RoundFailed):
    """A round gives no model because its numbers are not finite, not because of an error."""


@dataclass(frozen=True)
class Federation:
    """The node and the number of training examples of every client.

    Every node of a `pool` can host any client. With a pool, only the keys of `nodes` are used.
    `architectures` names each client's, if they differ.
    """

    nodes: Mapping[int, int]
    examples: Mapping[int, int]
    pool: Sequence[int] = ()
    architectures: Mapping[int, str] = field(default_factory=dict)
    _pace: dict[str, float] = field(default_factory=dict)  # least seconds per image
    _connected: set[int] = field(default_factory=set)  # nodes, at the start of the round

    def see(self, connected: Iterable[int]) -> None:
        """Keep which nodes are connected; the others of a pool get no clients in this round."""
        self._connected.clear()
        self._connected.update(connected)

    def by_node(self, clients: list[int]) -> dict[int, list[int]]:
        """Assign the given clients to nodes; return the clients of each node that has some.

        In a pool, the nodes get about equal work: examples, times the seconds that an image took
        with the client's architecture. Clients are assigned in descending order of work, each to
        the node with the least.
        """
        assigned: dict[int, list[int]] = {}
        if not self.pool:
            for client in clients:
                assigned.setdefault(self.nodes[client], []).append(client)
            return assigned
        pool = [node for node in self.pool if node in self._connected] or self.pool
        loads = dict.fromkeys(pool, 0.0)
        work = {client: self._work(client) for client in clients}
        for client in sorted(clients, key=lambda c: (-work[c], c)):
            node = min(pool, key=loads.__getitem__)
            loads[node] += work[client]
            assigned.setdefault(node, []).append(client)
        return {node: sorted(hosted) for node, hosted in assigned.items()}

    def _work(self, client: int) -> float:
        pace = self._pace.get(self.architectures.get(client, ""))
        if pace is None:  # before the first round with this architecture
            pace = fmean(self._pace.values()) if self._pace else 1.0
        return self.examples[client] * pace

    def note(self, results: Iterable[ClientResult]) -> None:
        """Keep the least seconds per image of each architecture, which varies less than the mean.

        With equal architectures nothing is kept, so that clients stay where their states are.
        """
        for result in results:
            name = self.architectures.get(result.client)
            if name is not None and result.images > 0 and result.seconds > 0:
                pace = result.seconds / result.images
                self._pace[name] = min(pace, self._pace.get(name, pace))

    def check(
        self,
        results: Sequence[ClientResult],
        failures: Sequence[ClientFailure],
        expected: Sequence[int],
    ) -> None:
        """Raise `UpdateRefused` unless a report covers exactly the requested clients.

        Its numbers must be finite, and its numbers of examples must equal those that the nodes
        reported before the first round.
        """
        check_clients([r.client for r in results] + [f.client for f in failures], expected)
        for result in results:
            known = self.examples[result.client]
            if result.examples != known:
                raise UpdateRefused(f"it claims {result.examples} examples but has {known}")
            if not np.isfinite(astuple(result)).all():
                raise UpdateRefused("its training loss, or another of its numbers, is not finite")
            if result.squared_distance < 0:
                raise UpdateRefused(f"its squared distance is {result.squared_distance:g}")


@dataclass(frozen=True)
class NewestModel:
    """The shared arrays after a round, those that belong to the strategy's state."""

    server_round: int
    arrays: ArrayRecord


@dataclass
class RoundReport:
    """What happened in one round of training; clients in ascending order."""

    server_round: int
    results: list[ClientResult] = field(default_factory=list)
    failures: list[ClientFailure] = field(default_factory=list)  # of clients without an update
    evaluation_failures: list[ClientFailure] = field(default_factory=list)
    asked: int = 0  # clients of the cohort
    bytes_down: int = 0  # of training messages
    bytes_up: int = 0
    client_bytes_down: int = 0  # of the arrays only, as if every client got its own message
    eval_bytes_down: int = 0  # of messages for the evaluation on the clients' test splits
    eval_bytes_up: int = 0
    client_accuracy: dict[str, Any] = field(default_factory=dict)  # its summary over clients
    scores: dict[int, dict[str, float]] = field(default_factory=dict)  # of each evaluated client
    unevaluated: list[int] = field(default_factory=list)  # clients without the requested accuracy
    metrics: dict[str, float] = field(default_factory=dict)  # the method's numbers, by name

    @property
    def train_loss(self) -> float:
        """Mean training loss of the clients that took a step, weighted by their examples."""
        trained = [result for result in self.results if result.steps]
        total = sum(result.examples for result in trained)
        return sum(r.loss * r.examples for r in trained) / total if total else float("nan")

    @property
    def all_failures(self) -> list[ClientFailure]:
        """The failures of training, then those of the evaluation."""
        return self.failures + self.evaluation_failures

    @property
    def errors(self) -> list[ClientFailure]:
        """The failures that end the run unless it tolerates failures."""
        return [failure for failure in self.all_failures if failure.kind in (ERROR, LATE)]

    def sort(self) -> None:
        """Sort by client, so that the order of the replies does not matter."""
        self.results.sort(key=lambda result: result.client)
        for failures in (self.failures, self.evaluation_failures):
            failures.sort(key=lambda failure: failure.client)

    def check(self, min_replies: int, tolerate_failures: bool, may_be_empty: bool = False) -> None:
        """Raise `RoundFailed` for an error that is not tolerated or for too few usable clients.

        With `may_be_empty` a round needs no usable client if `min_replies` is 1 and at least one
        client has answered.
        """
        self.check_errors(tolerate_failures)
        answered = len(self.errors) < len(self.failures)
        if may_be_empty and min_replies == 1 and answered:
            return
        if len(self.results) < min_replies:
            reasons = "; ".join(
                f"client {f.client} {f.kind}: {f.reason}" for f in self.failures[:3]
            )
            total = len(self.results) + len(self.failures)
            raise self.failed(
                f"round {self.server_round} has {len(self.results)} usable updates of {total} "
                f"and needs {min_replies} (min-replies): {reasons}"
            )

    def failed(self, sentence: str) -> RoundFailed:
        """Return a `RoundDiverged` if all failures are divergence, otherwise a `RoundFailed`."""
        diverged = all(failure.kind == DIVERGED for failure in self.all_failures)
        return (RoundDiverged if diverged else RoundFailed)(sentence)

    def check_errors(self, tolerated: bool) -> None:
        """Raise `RoundFailed` if a client failed with an error, unless that is tolerated."""
        if self.errors and not tolerated:
            first = self.errors[0]
            raise RoundFailed(
                f"client {first.client} failed in round {self.server_round}: {first.reason}"
            )


def check_clients(reported: Sequence[int], expected: Sequence[int]) -> None:
    """Raise `UpdateRefused` unless a reply covers each requested client exactly once."""
    if sorted(reported) != sorted(expected):
        raise UpdateRefused(f"it reports on clients {sorted(reported)}, not {sorted(expected)}")


def check_finite(
    arrays: Arrays, server_round: int, what: str = "a model", advice: str = ""
) -> None:
    """Raise `RoundDiverged` unless every value of a round's result is finite."""
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise RoundDiverged(
                f"round {server_round} gave {what} with non-finite values: '{name}'"
                + (f"; {advice}" if advice else "")
            )
