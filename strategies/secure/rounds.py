"""Rounds with secure aggregation: keys before the messages, no masks after the replies."""

from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from strategies.aggregate import GroupSums, UpdateRefused
from strategies.rounds.base import ClientStrategy
from strategies.rounds.records import ARRAYS, Task, failures_of
from strategies.rounds.report import RoundFailed
from strategies.rounds.transport import payload_bytes
from strategies.secure.inputs import inputs_of
from strategies.secure.messages import FEWEST, SECURE
from strategies.secure.server import SecureSession
from strategies.secure.signatures import terms_of


class SecureRounds(ClientStrategy):
    """A strategy whose nodes can mask their sums, so that the server sees only the total."""

    def __init__(
        self, *args: Any, secure_threshold: float = 0.0, configuration: str = "", **kwargs: Any
    ) -> None:
        """Prepare a strategy.

        `secure_threshold` turns on secure aggregation: the share of a round's nodes that must stay
        until its end. `configuration` names the run's, which all nodes must have.
        """
        super().__init__(*args, **kwargs)
        self.configuration, self._inputs = configuration, b""
        self.secure_threshold, self.summed = secure_threshold, secure_threshold > 0
        self._session: SecureSession | None = None
        self._masked: list[int] = []  # nodes whose masked sums have been added

    def before_rounds(self, grid: Grid, timeout: float) -> None:
        """Check that secure aggregation has nodes enough in every round; raises `RoundFailed`."""
        for server_round in range(1, self.last_round + 1) if self.secure_threshold else ():
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
        if not self.secure_threshold:
            return messages
        nodes = [message.metadata.dst_node_id for message in messages]
        known: dict[int, bytes] = {}
        inputs = {inputs_of(each.content, self.configuration, known) for each in messages}
        if len(inputs) > 1:
            raise RoundFailed(
                "secure aggregation needs that all nodes of a round receive the same, and this "
                "method sends each node extras of its own"
            )
        (self._inputs,) = inputs
        session = self._session = SecureSession(grid, nodes, self.secure_threshold, timeout)
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

    def added_masked(self, task: Task) -> None:
        """Note that the masked sums of the node with this task have been added."""
        self._masked += [node for node, each in self._tasks_sent.items() if each is task]

    def unmask(
        self, sums: GroupSums, least: int = 0, clip: float = 0.0, deviation: float = 0.0
    ) -> None:
        """Remove the masks from the sums, if there are any; raises `RoundFailed`.

        `least` as in `GroupSums.check_opened`; `clip` and `deviation` are those of the nodes.
        """
        if self._session is None:
            return
        groups = {name: group.sums for name, group in sums.groups.items()}
        lost = self.report.failures[0].reason if self.report.failures else ""
        terms = terms_of(sums, clip, deviation)
        masked = {ARRAYS: sums.model.sums, **groups}
        self._session.open(masked, self._masked, lost, terms, self._inputs)
        self.report.bytes_down += self._session.bytes_down
        self.report.bytes_up += self._session.bytes_up
        try:
            sums.check_opened(least)
        except UpdateRefused as error:
            raise RoundFailed(
                f"secure aggregation gave a sum that no honest nodes can have sent: {error}"
            ) from None
