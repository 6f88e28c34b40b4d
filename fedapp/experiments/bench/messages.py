"""A Flower app whose clients return the received model: messages without training.

Its server runs rounds of this project's strategy or, for comparison, of Flower's FedAvg with one
message per client, and writes the seconds of each round to a file. The benchmark starts it with
`flwr run`.
"""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg

from strategies.aggregate import Arrays, GroupSums
from strategies.fedavg import FedAvg
from strategies.rounds.federation import Federation
from strategies.rounds.records import (
    ARRAYS,
    TASK,
    ClientResult,
    Task,
    from_array_record,
    pack_report,
    to_array_record,
)

_EXAMPLES = 500
_ARRAYS = 10  # arrays of a model

server = ServerApp()
client = ClientApp()


@client.train()
def echo(message: Message, context: Context) -> Message:
    """Return the received model for every client that the task names."""
    if TASK not in message.content.config_records:
        return _echo_as_stock_flower(message)
    task = Task.from_record(message.content.config_records[TASK])
    model = from_array_record(message.content.array_records[ARRAYS])
    results = [ClientResult(c, _EXAMPLES, 1, 0.0, 0.0, 0, 0.0) for c in task.clients]
    content = pack_report(results, [])
    sums = GroupSums(model, {}, task.total_weight, task.cohort)
    if len(task.clients) > 1:
        for _ in task.clients:
            sums.add_checked(*sums.check(model, {}), _EXAMPLES)
        model = sums.model.sums
    content[ARRAYS] = to_array_record(model)
    return Message(content, reply_to=message)


def _echo_as_stock_flower(message: Message) -> Message:
    """Return the received model as in Flower's examples: a list of arrays, and a metric."""
    received = message.content.array_records[ARRAYS].to_numpy_ndarrays()
    content = RecordDict(
        {ARRAYS: ArrayRecord(received), "metrics": MetricRecord({"num-examples": _EXAMPLES})}
    )
    return Message(content, reply_to=message)


@server.main()
def serve(grid: Grid, context: Context) -> None:
    """Run the rounds of every size and write {megabytes: seconds of each round} to "results"."""
    config = context.run_config
    clients, rounds = int(config["clients"]), int(config["rounds"])
    nodes = _wait_for_nodes(grid, int(config["nodes"]))
    seconds: dict[str, list[float]] = {}
    for megabytes in str(config["megabytes"]).split():
        clock = Clock()
        model = random_model(float(megabytes))
        strategy: Any = FlowerFedAvg(fraction_evaluate=0.0)
        if not config["stock"]:
            strategy = our_strategy(nodes, clients, list(model))
        clock.start()
        result = strategy.start(
            grid, to_array_record(model), rounds, evaluate_fn=clock.end_of_round
        )
        _check(model, result.arrays)
        seconds[megabytes] = clock.seconds[-rounds:]
    Path(str(config["results"])).write_text(json.dumps(seconds))


class Clock:
    """Measures the seconds between the ends of rounds."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def start(self) -> None:
        """Start the first round."""
        self._last = time.perf_counter()

    def end_of_round(self, server_round: int, arrays: ArrayRecord) -> None:
        """Record one round; Flower's own strategies also call this before the first."""
        now = time.perf_counter()
        self.seconds.append(now - self._last)
        self._last = now


def our_strategy(nodes: list[int], clients: int, names: list[str]) -> FedAvg:
    """Return FedAvg for clients that are assigned to the nodes in turn."""
    return FedAvg(
        Federation({c: nodes[c % len(nodes)] for c in range(clients)},
                   dict.fromkeys(range(clients), _EXAMPLES)),
        cohort=lambda server_round: list(range(clients)),
        lr=lambda server_round: 0.1,
        trained=names,
    )  # fmt: skip


def random_model(megabytes: float) -> Arrays:
    """Return ten float32 arrays of this total size in megabytes."""
    length = max(1, round(megabytes * 1e6 / 4 / _ARRAYS))
    rng = np.random.default_rng(0)
    return {f"layer{i}": rng.standard_normal(length, np.float32) for i in range(_ARRAYS)}


def _wait_for_nodes(grid: Grid, count: int) -> list[int]:
    while len(nodes := sorted(grid.get_node_ids())) < count:
        time.sleep(0.05)
    return nodes


def _check(sent: Arrays, returned: ArrayRecord) -> None:
    """Raise RuntimeError unless the mean of equal models is that model."""
    arrays = [array.numpy() for array in returned.values()]
    for ours, theirs in zip(sent.values(), arrays, strict=True):
        if not np.allclose(ours, theirs, rtol=1e-4, atol=1e-5):
            raise RuntimeError("the mean of equal models is not that model")
