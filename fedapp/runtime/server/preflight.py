"""Queries the identity of every node before round 1.

Virtual nodes register one after the other, and real nodes start at any time. The server therefore
waits until every client of the run has a node that answers. It refuses, by name, a node whose
training would differ from the server's configuration.
"""

import logging
import time
from collections import Counter
from collections.abc import Mapping, Set
from typing import Any

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from fedapp.core.errors import UserError
from fedapp.runtime.node.identity import IMAGES, ROUNDS_LEFT
from strategies.rounds.federation import Federation
from strategies.rounds.records import PROTOCOL_VERSION, TASK
from strategies.rounds.report import is_count
from strategies.rounds.transport import Requests, exchange, pause

Identity = Mapping[str, Any]
log = logging.getLogger(__name__)

_FIRST_DELAY, _LONGEST_DELAY = 2.0, 60.0  # seconds until a lost node is queried again
_FIRST_WORD, _NEXT_WORD = 20.0, 60.0  # seconds until the log says what is waited for
_EQUAL_RUN = "both need the same app, run configuration and kind of data"
_ADVICE = {  # by what differs
    IMAGES: "every host divides its own copy of the data among all clients, so copy the server's "
    "data folder there, and install the same NumPy on both",
    "extension": "copy the server's file that FEDAPP_EXTENSIONS names there",
    "split": "copy the server's partition-file there",
}


def wait_for_nodes(
    grid: Grid,
    num_clients: int,
    expected: Mapping[str, str],
    timeout: float,
) -> Federation:
    """Wait until every client has a node, and return the federation.

    `expected` maps names of a node's identity to the server's own values, such as the hash of its
    configuration. All nodes must have the same values.

    Raises:
        UserError: a node is refused, or a client has no node after `timeout` seconds.
    """
    answered = _Answered(num_clients, expected)
    known: set[int] = set()
    lost = _Lost()
    queries, news = Requests(grid), _News()
    clock = queries.clock
    while not answered.complete():
        waited = clock.seconds()
        connected = set(grid.get_node_ids())
        known -= answered.forget_others(connected)
        new = [n for n in sorted(connected) if n not in known and lost.may_ask(n)]
        known.update(new)
        queries.send([_query(node) for node in new], timeout - waited)
        replies = list(queries.arrived())
        for reply in replies:
            if reply.has_error() and reply.error.code == ErrorCode.NODE_UNAVAILABLE:
                known.discard(reply.metadata.src_node_id)  # it may come back
                lost.note(reply.metadata.src_node_id)
            else:
                answered.add(reply)
        if waited > timeout and not answered.complete():
            raise UserError(answered.missing(known))
        news.say(waited, answered, known)
        if not replies:
            pause(waited)
    answered.log_nodes()
    return answered.federation()


class _Answered:
    """The nodes that have answered, and the clients that they host."""

    def __init__(self, num_clients: int, expected: Mapping[str, str]) -> None:
        self.num_clients, self.expected = num_clients, expected
        self.identities: dict[int, Identity] = {}  # by node
        self.node_of: dict[int, int] = {}  # node by client
        self.examples: dict[int, int] = {}  # number of training examples by client
        self.pool: dict[int, int] = {}  # nodes that host any client, by partition-id
        self.pool_size = 0

    def complete(self) -> bool:
        """Return whether every client has a node and every node of a pool has answered."""
        return len(self.node_of) == self.num_clients and len(self.pool) == self.pool_size

    def add(self, reply: Message) -> None:
        """Add one node and its clients; raises UserError that names the node if it is refused."""
        source = reply.metadata.src_node_id
        identity = _identity(reply)
        _compare(identity, _name(source, identity), self.expected)
        rival = self._rival(identity)
        if rival is not None:
            raise UserError(
                f"{_name(source, identity)} and {_name(rival, self.identities[rival])} do not fit: "
                "give every SuperNode a partition-id of its own, and all of them the same "
                "num-partitions and hosts"
            )
        left = identity.get(ROUNDS_LEFT, 0)
        if not is_count(left):
            raise UserError(f"{_name(source, identity)} reports {left!r} rounds that it has left")
        self.identities[source] = identity
        if identity["hosts-any"]:
            self.pool[identity["partition-id"]] = source
            self.pool_size = identity["num-partitions"]
        for client, count in zip(identity["clients"], identity["examples"], strict=True):
            if not is_count(count) or not count:
                name = _name(source, identity)
                raise UserError(f"{name} reports {count} training images of client {client}")
            self.node_of[client] = source
            self.examples[client] = count

    def forget_others(self, connected: Set[int]) -> set[int]:
        """Forget the nodes that are gone, and return them: each is asked again if it comes back.

        Without a key it comes back with another number.
        """
        gone = self.identities.keys() - connected
        for node in gone:
            del self.identities[node]
            self.pool = {part: each for part, each in self.pool.items() if each != node}
            self.node_of = {client: each for client, each in self.node_of.items() if each != node}
        return gone

    def _rival(self, identity: Identity) -> int | None:
        """Return an earlier node whose part a node has, too, or that counts parts otherwise."""
        first = next(iter(self.identities), None)  # the others are like it
        shared = ("hosts-any", "num-partitions")
        if first is not None and any(identity[k] != self.identities[first][k] for k in shared):
            return first
        if identity["hosts-any"]:
            return self.pool.get(identity["partition-id"])
        return next((self.node_of[c] for c in identity["clients"] if c in self.node_of), None)

    def log_nodes(self) -> None:
        """Log how many nodes host how many clients, and on several hosts the name of each node."""
        total = sum(self.examples.values())
        text, devices = "%d nodes host %d clients with %d examples%s", self._devices()
        log.info(text, len(self.identities), self.num_clients, total, devices)
        if self._on_several_hosts():
            nodes = sorted(self.identities.items(), key=lambda each: each[1]["partition-id"])
            for node, identity in nodes:
                log.info(_name(node, identity))

    def _devices(self) -> str:
        """Return how many nodes train on which device; "" if all do on CPUs."""
        counts = Counter(
            str(identity.get("device", "cpu")) for identity in self.identities.values()
        )
        words = ", ".join(f"{count} on {device}" for device, count in sorted(counts.items()))
        return f" ({words})" if set(counts) != {"cpu"} else ""

    def federation(self) -> Federation:
        """Return the federation of these nodes; on several hosts the nodes have names."""
        nodes, named = self.identities.items(), self._on_several_hosts()
        pool = [self.pool[partition_id] for partition_id in sorted(self.pool)]
        left = {node: each[ROUNDS_LEFT] for node, each in nodes if ROUNDS_LEFT in each}
        names = {node: f"node {node} ({_part(each)})" for node, each in nodes if named}
        return Federation(self.node_of, self.examples, pool, rounds_left=left, names=names)

    def _on_several_hosts(self) -> bool:
        return len({identity["host"] for identity in self.identities.values()}) > 1

    def missing(self, asked: set[int]) -> str:
        """Return the error sentence about clients that have no node, or nodes without answer."""
        absent = [client for client in range(self.num_clients) if client not in self.node_of]
        silent = sorted(asked - self.identities.keys())
        advice = "raise round-timeout if they need longer to start"
        if silent:
            advice = f"node {silent[0]} does not answer, so look at its log, or {advice}"
        elif absent:
            advice = f"start the missing SuperNodes, lower num-clients or {advice}"
        if not absent:
            return f"{len(self.pool)} of {self.pool_size} nodes of a pool have answered: {advice}"
        return (
            f"{len(absent)} of {self.num_clients} clients have no node (first: client {absent[0]});"
            f" {len(asked)} nodes are connected, and {len(self.identities)} have answered: {advice}"
        )


def _name(node: int, identity: Identity) -> str:
    """Return a node's name in a sentence: its number, its partition and its host."""
    pooled = ", hosts any client" if identity.get("hosts-any") else ""
    return f"node {node} ({_part(identity)} on {identity['host']}{pooled})"


def _part(identity: Identity) -> str:
    return f"partition {identity['partition-id']} of {identity['num-partitions']}"


class _News:
    """Says now and then in the log what the server waits for."""

    def __init__(self) -> None:
        self._next = _FIRST_WORD

    def say(self, waited: float, answered: _Answered, known: set[int]) -> None:
        """Log what is missing after so many seconds, unless it was logged a moment ago."""
        if waited > self._next and not answered.complete():
            self._next = waited + _NEXT_WORD
            log.info("waiting for nodes since %.0f s: %s", waited, answered.missing(known))


class _Lost:
    """Nodes that did not answer; the delay before the next query doubles, up to a limit.

    A node on a busy machine can miss a heartbeat. Every query starts a process on that machine, so
    an immediate second query would only add to its load.
    """

    def __init__(self) -> None:
        self._times: dict[int, int] = {}
        self._again: dict[int, float] = {}

    def note(self, node: int) -> None:
        self._times[node] = self._times.get(node, 0) + 1
        delay = min(_LONGEST_DELAY, _FIRST_DELAY * 2 ** (self._times[node] - 1))
        self._again[node] = time.monotonic() + delay

    def may_ask(self, node: int) -> bool:
        return time.monotonic() >= self._again.get(node, 0.0)


def forget(
    grid: Grid,
    federation: Federation,
    state_key: str,
    timeout: float = 30.0,
) -> None:
    """Tell every node that a run is over, so that it removes its clients' states and secrets.

    An empty `state_key` means no states. A state that a node cannot remove is logged with the
    reason; it does not fail the run.
    """
    record = ConfigRecord({"state_key": state_key} if state_key else {"secrets": True})
    pending = {*federation.node_of.values(), *federation.pool}
    messages = [
        Message(RecordDict({TASK: record}), dst_node_id=node, message_type="query.forget")
        for node in sorted(pending)
    ]
    for reply in exchange(grid, messages, timeout):
        pending.discard(reply.metadata.src_node_id)
        if reason := _failure(reply):
            text = "node %d has not removed what it keeps of the run: %s"
            log.warning(text, reply.metadata.src_node_id, reason)
    if pending:
        text = "nodes that have not said in time whether they removed what they keep of the run: %d"
        log.warning(text, len(pending))


def _failure(reply: Message) -> str:
    """Return why a node did not remove its clients' states; empty if it did."""
    if reply.has_error():
        return (reply.error.reason or "").strip() or "it gave no reason"
    records = reply.content.config_records
    return str(records["forgotten"].get("error", "")) if "forgotten" in records else ""


def _query(node: int) -> Message:
    return Message(RecordDict(), dst_node_id=node, message_type=MessageType.QUERY)


def _identity(reply: Message) -> Identity:
    """Return the identity in a node's reply; raises UserError if the node cannot take part."""
    source = reply.metadata.src_node_id
    if reply.has_error():
        raise UserError(f"node {source} cannot take part: {(reply.error.reason or '').strip()}")
    identity: Identity = reply.content.config_records["identity"]
    if "error" in identity:
        raise UserError(f"node {source} cannot take part: {identity['error']}")
    return identity


def _compare(identity: Identity, name: str, expected: Mapping[str, str]) -> None:
    """Raise UserError if a node's protocol or one of the `expected` values differs."""
    if identity["protocol"] != PROTOCOL_VERSION:
        raise UserError(
            f"{name} speaks protocol {identity['protocol']}, the server {PROTOCOL_VERSION}: "
            f"install the same fedapp version on both ({identity['versions']})"
        )
    for key, value in expected.items():
        if identity[key] != value:
            raise UserError(
                f"{name} has another {key} ({identity[key]}) than the server ({value}): "
                f"{_ADVICE.get(key, _EQUAL_RUN)} ({identity['versions']})"
            )
