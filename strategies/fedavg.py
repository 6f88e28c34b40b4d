"""FedAvg: the weighted mean of the clients' models; the base class of every averaging method.

The server adds replies exactly and as they arrive. Neither their order nor their grouping by node
changes a bit of the model, and the server's memory does not grow with the cohort.
"""

from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from strategies.aggregate import Arrays, GroupSums, UpdateRefused
from strategies.rounds.base import ClientStrategy
from strategies.rounds.federation import RoundFailed
from strategies.rounds.records import (
    ARRAYS,
    UPLOADS,
    ClientResult,
    Task,
    failures_of,
    unpack_uploads,
    view_array_record,
)
from strategies.rounds.robust import Rule, SeparateModels
from strategies.rounds.transport import payload_bytes
from strategies.secure.messages import FEWEST, SECURE
from strategies.secure.server import SecureSession


class FedAvg(ClientStrategy):
    """Weighted mean of the sampled clients' models (McMahan et al. 2017, algorithm 1)."""

    sums_only = True
    _sums: GroupSums
    _separate: SeparateModels

    def __init__(
        self, *args: Any, rule: Rule | None = None, secure_share: float = 0.0, **kwargs: Any
    ) -> None:
        """Prepare a strategy.

        `rule` is a robust or private mean instead of the exact one. `secure_share` turns on secure
        aggregation: the share of a round's nodes that must stay until its end.
        """
        super().__init__(*args, **kwargs)
        self.rule, self.secure_share = rule or Rule(), secure_share
        self.separate, self.summed = self.rule.needed, secure_share > 0
        self._session: SecureSession | None = None
        self._masked: list[int] = []  # nodes whose masked sums have been added

    def averaged(self) -> dict[str, Arrays]:
        """Return zeros in the shapes of the further groups that are averaged with equal weights."""
        return {}

    def server_update(self, received: Arrays, mean: Arrays) -> Arrays:
        """Turn the mean of the clients' models into the next global model."""
        return mean

    def use_means(self, means: dict[str, Arrays]) -> None:
        """Use the uniform means of the groups of `averaged`; called before `server_update`."""

    def begin_round(self, received: Arrays, total_weight: int, cohort: int) -> None:
        """Reset the sums, or the list of models if the rule needs separate models."""
        if self.separate:
            self._separate = SeparateModels(received, cohort)
        else:
            self._sums = GroupSums(received, self.averaged(), total_weight, cohort)

    def query_clients(self, grid: Grid, timeout: float) -> None:
        """Check that secure aggregation has nodes enough in every round; raises `RoundFailed`."""
        for server_round in range(1, self.last_round + 1) if self.secure_share else ():
            nodes = len(self.federation.by_node(self.cohort(server_round)))
            if nodes < FEWEST:
                raise RoundFailed(
                    f"secure aggregation needs at least {FEWEST} nodes in a round, and round "
                    f"{server_round} has {nodes}: start more SuperNodes (fedapp run --nodes), or "
                    "raise participation"
                )

    def prepare_messages(
        self, grid: Grid, messages: list[Message], timeout: float
    ) -> list[Message]:
        """With secure aggregation, exchange keys first; nodes that are lost then get no message."""
        if not self.secure_share:
            return messages
        nodes = [message.metadata.dst_node_id for message in messages]
        session = self._session = SecureSession(grid, nodes, self.secure_share, timeout)
        self._masked = []
        records = session.prepare()
        for node, (reason, kind) in session.lost.items():
            clients = self._tasks_sent.pop(node).clients
            self.report.failures += failures_of(clients, reason, kind)
        self.report.check_errors(self.tolerate_failures)
        kept = [message for message in messages if message.metadata.dst_node_id in records]
        for message in kept:
            message.content[SECURE] = records[message.metadata.dst_node_id]
        self.report.bytes_down = sum(map(payload_bytes, kept))
        return kept

    def add_reply(
        self, content: RecordDict, task: Task, results: list[ClientResult]
    ) -> list[ClientResult]:
        """Add a client's model, or the exact partial sum of a node with several clients."""
        if self.separate:
            weights = {result.client: task.weight(result.examples) for result in results}
            self._separate.add(unpack_uploads(content.array_records[UPLOADS]), weights)
            return results
        weight = sum(task.weight(result.examples) for result in results)
        model = view_array_record(content.array_records[ARRAYS])
        groups = {
            name: view_array_record(record)
            for name, record in content.array_records.items()
            if name not in (ARRAYS, UPLOADS)
        }
        if self.secure_share:
            self._sums.merge(model, groups, weight, len(results), masked=True)
            self._masked += [node for node, each in self._tasks_sent.items() if each is task]
        elif len(task.clients) > 1:
            self._sums.merge(model, groups, weight, len(results))
        else:
            self._sums.add(model, groups, weight)
        return results

    def end_round(self, received: Arrays) -> Arrays:
        """Return the next global model: the method's update with the mean."""
        if self.separate:
            mean = self.rule.combine(self.server_round, received, self._separate)
        else:
            self.use_means({name: group.mean() for name, group in self._sums.groups.items()})
            mean = self._sums.model.mean()
        return self.server_update(received, mean)

    def after_replies(self) -> None:
        """Remove the masks of secure aggregation from the sums; raises `RoundFailed`."""
        if self._session is None:
            return
        groups = {name: group.sums for name, group in self._sums.groups.items()}
        lost = self.report.failures[0].reason if self.report.failures else ""
        self._session.open({ARRAYS: self._sums.model.sums, **groups}, self._masked, lost)
        self.report.bytes_down += self._session.bytes_down
        self.report.bytes_up += self._session.bytes_up
        try:
            self._sums.check_opened()
        except UpdateRefused as error:
            raise RoundFailed(
                f"secure aggregation gave a sum that no honest nodes can have sent: {error}"
            ) from None
