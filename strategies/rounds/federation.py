"""The clients and nodes of a run: who hosts whom, and what each client has."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean

from strategies.aggregate import UpdateRefused
from strategies.rounds.records import ClientFailure, ClientResult
from strategies.rounds.report import LARGEST_REPORTED, check_clients, is_count

_COUNTS = {"client", "examples", "steps", "payload", "images", "reinitialised"}  # of ClientResult


@dataclass
class Federation:
    """The node and the number of training examples of every client.

    Every node of a `pool` can host any client. With a pool, only the keys of `node_of` are used.
    `architectures` names each client's, if they differ. `rounds_left` has the number of rounds in
    which a node takes part at most, for the nodes that have set a limit. `names` are those of the
    nodes for the user, if they are on several hosts. The last `newcomers` clients never train.
    """

    node_of: Mapping[int, int]  # by client
    examples: Mapping[int, int]
    pool: Sequence[int] = ()
    architectures: Mapping[int, str] = field(default_factory=dict)
    rounds_left: Mapping[int, int] = field(default_factory=dict)
    names: Mapping[int, str] = field(default_factory=dict)
    newcomers: int = 0
    _asked: dict[int, int] = field(default_factory=dict)  # the last node of each client
    _pace: dict[str, float] = field(default_factory=dict)  # least seconds per image
    _connected: frozenset[int] = frozenset()  # nodes, at the start of a training or evaluation

    @property
    def training_clients(self) -> int:
        """The number of clients that may train: those from 0 to this number - 1."""
        return len(self.node_of) - self.newcomers

    def set_connected(self, nodes: Iterable[int]) -> None:
        """Store which nodes are connected; the others of a pool get no clients."""
        self._connected = frozenset(nodes)

    def by_node(self, clients: list[int]) -> dict[int, list[int]]:
        """Assign the given clients to nodes; return the clients of each node that has some."""
        assigned = self._shared_by_pool(clients) if self.pool else self._hosted(clients)
        self._asked |= {client: node for node, hosted in assigned.items() for client in hosted}
        return assigned

    def place(self, client: int) -> str:
        """Return " on " and the name of the node that was last asked; "" if it has no name."""
        name = self.names.get(self._asked.get(client, 0))
        return f" on {name}" if name else ""

    def _hosted(self, clients: list[int]) -> dict[int, list[int]]:
        assigned: dict[int, list[int]] = {}
        for client in clients:
            assigned.setdefault(self.node_of[client], []).append(client)
        return assigned

    def _shared_by_pool(self, clients: list[int]) -> dict[int, list[int]]:
        """Give the nodes of a pool about equal work.

        It is examples, times the seconds that an image took with the client's architecture. Clients
        are assigned in descending order of work, each to the node with the least.
        """
        assigned: dict[int, list[int]] = {}
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

    def learn_pace(self, results: Iterable[ClientResult]) -> None:
        """Store the least seconds per image of each architecture, which varies less than the mean.

        With equal architectures nothing is stored.
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

        Its numbers must be possible, and its numbers of examples must equal those that the nodes
        reported before the first round.
        """
        check_clients([r.client for r in results] + [f.client for f in failures], expected)
        for result in results:
            known = self.examples[result.client]
            if result.examples != known:
                raise UpdateRefused(f"it claims {result.examples} examples but has {known}")
            _check_numbers(result)


def _check_numbers(result: ClientResult) -> None:
    """Raise `UpdateRefused` unless counts are whole numbers, and no sum of others can overflow."""
    for name, value in asdict(result).items():
        if name in _COUNTS:
            if not is_count(value):
                raise UpdateRefused(f"its '{name}' is {value}, not a number of something")
        elif not abs(value) <= LARGEST_REPORTED:
            raise UpdateRefused(f"its '{name}' is {value:g}, which is not finite or too large")
    if result.squared_distance < 0:
        raise UpdateRefused(f"its squared distance is {result.squared_distance:g}")
