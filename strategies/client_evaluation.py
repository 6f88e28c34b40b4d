"""Evaluating the global model on every client's own test split.

The papers report such accuracies as mean and spread over all clients, so every client counts, not
only the sampled ones, and the spread stands beside the mean.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from flwr.app import ArrayRecord, Message, MessageType, MetricRecord, RecordDict

from strategies.records import ARRAYS, REPORT


def evaluation_messages(arrays: ArrayRecord, nodes: Iterable[int]) -> list[Message]:
    """Return one message per node that asks it to evaluate `arrays` on its clients' test splits."""
    content = RecordDict({ARRAYS: arrays})
    return [
        Message(content, dst_node_id=node, message_type=MessageType.EVALUATE)
        for node in sorted(set(nodes))
    ]


def summarise_clients(replies: Iterable[Message]) -> MetricRecord | None:
    """Return mean, population std, worst and quartiles of the clients' accuracies (fractions)."""
    accuracies: dict[int, float] = {}
    for reply in replies:
        if not reply.has_error():
            columns = reply.content.metric_records[REPORT]
            accuracies.update(_by_client(columns["client"], columns["accuracy"]))  # type: ignore[arg-type]
    if not accuracies:
        return None
    values = np.array([accuracies[client] for client in sorted(accuracies)])
    low, median, high = np.quantile(values, [0.25, 0.5, 0.75])
    return MetricRecord(
        {
            "client-accuracy-mean": float(values.mean()),
            "client-accuracy-std": float(values.std()),
            "client-accuracy-worst": float(values.min()),
            "client-accuracy-quartiles": [float(low), float(median), float(high)],
            "client-count": len(values),
        }
    )


def _by_client(clients: Sequence[int], accuracies: Sequence[float]) -> dict[int, float]:
    return {int(client): float(a) for client, a in zip(clients, accuracies, strict=True)}
