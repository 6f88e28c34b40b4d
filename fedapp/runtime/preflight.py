"""Asking every node who it is before round 1.

Virtual nodes register one after the other and real ones start when they start, so the server waits
until every client of the run has a node that answers. A node that would train something else than
the server thinks is refused by name.
"""

import logging
import time
from collections.abc import Mapping
from typing import Any

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from fedapp.core.errors import UserError
from fedapp.runtime.identity import IMAGES
from strategies.rounds.federation import Federation
from strategies.rounds.records import PROTOCOL_VERSION, TASK
from strategies.rounds.transport import exchange

Identity = Mapping[str, Any]
log = logging.getLogger(__name__)

_FIRST_PAUSE, _LONGEST_PAUSE = 2.0, 60.0  # seconds before a lost node is asked again
_EQUAL_RUN = "both need the same app, run configuration and kind of data"
_EQUAL_COPY = (
    "every host divides its own copy of the data among all clients, so copy the server's data "
    "folder there, and install the same NumPy on both"
)


def wait_for_nodes(
    grid: Grid,
    num_clients: int,
    expected: Mapping[str, str],
    timeout: float,
) -> Federation:
    """Return the federation once every client has a node; raises UserError after `timeout` seconds.

    `expected` holds the server's own hashes, of its configuration among others, by their names in
    a node's identity; nodes must share them.
    """
    deadline = time.monotonic() + timeout
    met = _Met(num_clients, expected)
    known: set[int] = set()
    lost = _Lost()
    while not met.complete():
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise UserError(met.missing(len(known)))
        new = [n for n in grid.get_node_ids() if n not in known and lost.may_ask(n)]
        if not new:
            time.sleep(0.05)
            continue
        known.update(new)
        questions = [_question(node) for node in new]
        for reply in exchange(grid, questions, remaining):
            if reply.has_error() and reply.error.code == ErrorCode.NODE_UNAVAILABLE:
                known.discard(reply.metadata.src_node_id)  # it may come back
                lost.note(reply.metadata.src_node_id)
            else:
                met.welcome(reply)
    total = sum(met.examples.values())
    log.info("%d nodes host %d clients with %d examples", len(known), num_clients, total)
    pool = [met.pool[place] for place in sorted(met.pool)]
    return Federation(met.nodes, met.examples, pool)


class _Met:
    """The nodes that have answered, and what they host."""

    def __init__(self, num_clients: int, expected: Mapping[str, str]) -> None:
        self.num_clients, self.expected = num_clients, expected
        self.nodes: dict[int, int] = {}
        self.examples: dict[int, int] = {}
        self.pool: dict[int, int] = {}  # nodes that host any client, by partition-id
        self.pool_size = 0

    def complete(self) -> bool:
        """Return whether every client, and every node of a pool, is there."""
        return len(self.nodes) == self.num_clients and len(self.pool) == self.pool_size

    def welcome(self, reply: Message) -> None:
        """Note the clients of one node, or refuse it with a sentence that names it."""
        source = reply.metadata.src_node_id
        identity = _identity(reply)
        name = f"node {source} (partition {identity['partition-id']} on {identity['host']})"
        _compare(identity, name, self.expected)
        if identity["hosts-any"]:
            self.pool[identity["partition-id"]] = source
            self.pool_size = identity["num-partitions"]
        for client, count in zip(identity["clients"], identity["examples"], strict=True):
            if client in self.nodes and not identity["hosts-any"]:
                raise UserError(
                    f"{name} hosts client {client}, and so does node {self.nodes[client]}: give "
                    "every SuperNode a partition-id of its own"
                )
            self.nodes[client] = source
            self.examples[client] = count

    def missing(self, answered: int) -> str:
        """Return the sentence for those that did not come."""
        absent = [client for client in range(self.num_clients) if client not in self.nodes]
        late = "raise round-timeout if they need longer to start"
        if not absent:
            return f"{len(self.pool)} of {self.pool_size} virtual nodes have answered: {late}"
        return (
            f"{len(absent)} of {self.num_clients} clients have no node (first: client {absent[0]});"
            f" {answered} nodes are connected: start the missing SuperNodes, lower num-clients or "
            f"{late}"
        )


class _Lost:
    """Nodes that did not answer, each asked again after a longer and longer pause.

    A node on a busy machine misses a heartbeat, and every question starts a process there: asked
    again at once, it would only get busier.
    """

    def __init__(self) -> None:
        self._times: dict[int, int] = {}
        self._again: dict[int, float] = {}

    def note(self, node: int) -> None:
        self._times[node] = self._times.get(node, 0) + 1
        pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** (self._times[node] - 1))
        self._again[node] = time.monotonic() + pause

    def may_ask(self, node: int) -> bool:
        return time.monotonic() >= self._again.get(node, 0.0)


def forget(
    grid: Grid,
    federation: Federation,
    state_key: str,
    timeout: float = 10.0,
) -> None:
    """Tell every node that a run is over, so that it removes what its clients kept.

    What stays is said, with the reason; the run itself has not failed.
    """
    record = ConfigRecord({"state_key": state_key})
    silent = {*federation.nodes.values(), *federation.pool}
    messages = [
        Message(RecordDict({TASK: record}), dst_node_id=node, message_type="query.forget")
        for node in sorted(silent)
    ]
    for reply in exchange(grid, messages, timeout):
        silent.discard(reply.metadata.src_node_id)
        if reason := _left(reply):
            kept = "node %d has not removed its clients' states: %s"
            log.warning(kept, reply.metadata.src_node_id, reason)
    if silent:
        unknown = "%d nodes have not said in time whether they removed their clients' states"
        log.warning(unknown, len(silent))


def _left(reply: Message) -> str:
    """Return why a node's clients still have their states; empty if they have none."""
    if reply.has_error():
        return (reply.error.reason or "").strip() or "it gave no reason"
    answers = reply.content.config_records
    return str(answers["forgotten"].get("error", "")) if "forgotten" in answers else ""


def _question(node: int) -> Message:
    return Message(RecordDict(), dst_node_id=node, message_type=MessageType.QUERY)


def _identity(reply: Message) -> Identity:
    """Return what a node says about itself; raises UserError when it cannot take part."""
    source = reply.metadata.src_node_id
    if reply.has_error():
        raise UserError(f"node {source} cannot take part: {(reply.error.reason or '').strip()}")
    identity: Identity = reply.content.config_records["identity"]
    if "error" in identity:
        raise UserError(f"node {source} cannot take part: {identity['error']}")
    return identity


def _compare(identity: Identity, name: str, expected: Mapping[str, str]) -> None:
    """Refuse a node that would train something else."""
    if identity["protocol"] != PROTOCOL_VERSION:
        raise UserError(
            f"{name} speaks protocol {identity['protocol']}, the server {PROTOCOL_VERSION}: "
            f"install the same fedapp version on both ({identity['versions']})"
        )
    for key, value in expected.items():
        if identity[key] != value:
            raise UserError(
                f"{name} has another {key} ({identity[key]}) than the server ({value}): "
                f"{_EQUAL_COPY if key == IMAGES else _EQUAL_RUN} ({identity['versions']})"
            )
