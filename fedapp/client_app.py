"""The ClientApp: a node answers for the clients it hosts.

A real SuperNode hosts one client, a virtual one may host many; node p of P hosts the clients c with
c mod P = p. The handlers build the NumPyClient of each client they were asked for, call it, and
pack what it returns in named records. They are the same in a simulation and on real hosts.
"""

import traceback
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from clients.client import LocalClient
from clients.local_training import LossDiverged
from fedapp.errors import UserError
from fedapp.identity import describe, hosted_clients
from fedapp.node import Node, open_node
from strategies.aggregate import ExactSum, UpdateRefused
from strategies.records import (
    ARRAYS,
    DIVERGED,
    ERROR,
    REPORT,
    TASK,
    ClientFailure,
    ClientResult,
    Task,
    from_array_record,
    pack_report,
    to_array_record,
)

app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    """Say who this node is: its partition, its clients and their examples, versions, device."""
    try:
        identity = describe(context)
    except UserError as mistake:
        identity = {"error": str(mistake)}
    return Message(RecordDict({"identity": ConfigRecord(identity)}), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the clients that the task names, and return their models or exact partial sum."""
    node = open_node(context.run_config, context.node_config)
    task = Task.from_record(message.content.config_records[TASK])
    received = from_array_record(message.content.array_records[ARRAYS])
    total = ExactSum(received, task.total_weight)
    alone = len(task.clients) == 1
    results: list[ClientResult] = []
    failures: list[ClientFailure] = []
    last: dict[str, np.ndarray] = {}
    for client in task.clients:
        try:
            last, result = _fit(node, client, received, task)
            if alone:
                total.check(last)
            else:
                total.add(last, task.weight(result.examples))
            results.append(result)
        except (LossDiverged, UpdateRefused) as reason:
            failures.append(ClientFailure(client, DIVERGED, str(reason)))
        except Exception as error:
            failures.append(ClientFailure(client, ERROR, _explain(error)))
    content = pack_report(results, failures)
    if results:
        content[ARRAYS] = to_array_record(last if alone else total.sums)
    return Message(content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate the received model on the own test split of every client this node hosts."""
    node = open_node(context.run_config, context.node_config)
    received = from_array_record(message.content.array_records[ARRAYS])
    clients = hosted_clients(context, node.config.num_clients)
    hosted = [node.client(client) for client in clients]
    rows = [client.evaluate(_ordered(received, client), {}) for client in hosted]
    columns: dict[str, Any] = {
        "client": clients,
        "examples": [count for _, count, _ in rows],
        "loss": [loss for loss, _, _ in rows],
        "accuracy": [float(metrics["accuracy"]) for _, _, metrics in rows],
    }
    return Message(RecordDict({REPORT: MetricRecord(columns)}), reply_to=message)


def _fit(
    node: Node, client: int, received: dict[str, np.ndarray], task: Task
) -> tuple[dict[str, np.ndarray], ClientResult]:
    """Let one NumPyClient train, and name what it returns."""
    numpy_client = node.client(client)
    arrays, examples, metrics = numpy_client.fit(
        _ordered(received, numpy_client), {"server_round": task.server_round, "lr": task.lr}
    )
    result = ClientResult(
        client,
        examples,
        int(metrics["steps"]),
        float(metrics["loss"]),
        float(metrics["seconds"]),
        sum(array.nbytes for array in arrays),
        float(metrics["squared_distance"]),
    )
    return dict(zip(numpy_client.shared, arrays, strict=True)), result


def _ordered(received: dict[str, np.ndarray], client: LocalClient) -> list[np.ndarray]:
    """Return the received arrays in the client's order; raises UserError on other names."""
    if received.keys() != client.shared.keys():
        raise UserError(f"the server sent {sorted(received)}, not {sorted(client.shared)}")
    return [received[name] for name in client.shared]


def _explain(error: Exception) -> str:
    """Return the sentence of a user's mistake, or the traceback of anything else."""
    return str(error) if isinstance(error, UserError) else traceback.format_exc()
