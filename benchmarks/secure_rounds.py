"""What secure aggregation adds to a round: seconds of a node and of the server, bytes per node.

With differential privacy a node also clips each client's update and adds its share of the noise.

    python benchmarks/secure_rounds.py --nodes 10 50 100 --megabytes 1 10 40

Prints a Markdown table. All nodes are in this process and take all steps; only the first masks a
model of the full size, as each does in parallel on its own host. Nothing trains.
"""

import argparse
import time
from collections.abc import Iterable
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict

from fedapp.engines.local_grid import set_task_ids
from fedapp.results.formatting import markdown_table, megabytes
from strategies.aggregate import ExactSum
from strategies.rounds.private import add_noise, limited
from strategies.rounds.transport import set_message_id
from strategies.secure.messages import KEYS, SECURE, SHARES, UNMASK
from strategies.secure.node import SecureNode
from strategies.secure.server import SecureSession

SHARE, TIMEOUT = 2 / 3, 3600.0


class Nodes:
    """A grid of nodes that answer at once; the seconds of the first one are counted."""

    def __init__(self, count: int) -> None:
        self.nodes = {100 + i: SecureNode(RecordDict(), SHARE) for i in range(count)}
        self.waiting: dict[str, Message] = {}
        self.seconds = 0.0

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Queue messages and return their ids."""
        ids = []
        for message in messages:
            ids.append(f"message-{len(self.waiting)}-{message.metadata.dst_node_id}")
            set_message_id(message, ids[-1])
            self.waiting[ids[-1]] = message
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the answers to queued messages."""
        return [self._answer(self.waiting.pop(each)) for each in message_ids]

    def timed(self, node: int, step: Any, *arguments: Any) -> Any:
        """Take a step of a node; count its seconds if it is the first."""
        started = time.perf_counter()
        result = step(*arguments)
        if node == 100:
            self.seconds += time.perf_counter() - started
        return result

    def _answer(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        steps = {KEYS: "advertise", SHARES: "share_secrets", UNMASK: "unmask"}
        name = steps[message.metadata.message_type.removeprefix("query.")]
        asked = message.content.config_records[SECURE]
        answer = self.timed(node, getattr(self.nodes[node], name), asked)
        return Message(RecordDict({SECURE: ConfigRecord(answer)}), reply_to=message)


def private_seconds(values: int) -> tuple[float, float]:
    """Return the seconds in which a node clips one client's update, and adds its noise."""
    received = {"model": np.ones(values, np.float32)}
    model = {"model": np.linspace(0.5, 1.5, values, dtype=np.float32)}
    total = ExactSum(received, 100)
    started = time.perf_counter()
    limited(total, model, received, 1.0, 1.0)
    clipped = time.perf_counter()
    add_noise(total, 1.0, 7)
    return clipped - started, time.perf_counter() - clipped


def measure(count: int, size: float) -> list[str]:
    """Return the row of one round with `count` nodes and a float32 model of `size` MB."""
    values = int(size * 1e6 / 4)
    grid, started = Nodes(count), time.perf_counter()
    session = SecureSession(grid, list(grid.nodes), SHARE, TIMEOUT)  # type: ignore[arg-type]
    asked = session.prepare()
    prepared = time.perf_counter() - started
    sums, terms = np.zeros(values, np.int64), b""
    for node, record in asked.items():
        arrays = {"model": sums} if node == 100 else {}
        grid.timed(node, grid.nodes[node].mask, {"arrays": arrays}, record, terms, b"")
    opened = time.perf_counter()
    session.open({"arrays": {"model": sums}}, list(grid.nodes), lost="", terms=terms, inputs=b"")
    server = time.perf_counter() - opened
    extra = (session.bytes_up + session.bytes_down) / count + sum(
        len(text) for text in asked[100]["sealed"]
    )
    clipping, noise = private_seconds(values)
    return [
        str(count), f"{size:g}", f"{grid.seconds:.2f}", f"{clipping:.2f}", f"{noise:.2f}",
        f"{server:.2f}", f"{megabytes(values * 8)} for {megabytes(values * 4)}", megabytes(extra),
        f"{prepared:.1f}",
    ]  # fmt: skip


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[10, 50, 100])
    parser.add_argument("--megabytes", type=float, nargs="+", default=[1, 10, 40])
    options = parser.parse_args()
    set_task_ids()
    columns = [
        "nodes", "model, MB", "a node, s", "clipping a client's update, s", "noise, s",
        "server's unmasking, s", "update up", "protocol per node",
        "all nodes' keys and shares in one process, s",
    ]  # fmt: skip
    rows = [measure(count, size) for count in options.nodes for size in options.megabytes]
    print("\n".join(markdown_table(columns, rows)))


if __name__ == "__main__":
    main()
