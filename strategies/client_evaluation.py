"""Evaluating a model on every client's own test split: the global one, or personal ones.

The papers report such accuracies as mean and spread over all clients, so every client counts, not
only the sampled ones, and the spread stands beside the mean.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from flwr.app import Message, MetricRecord

from strategies.records import ERROR, REPORT, ClientFailure, unpack_failures

Scores = dict[str, float]

_CLIENT, _EXAMPLES, _ACCURACY = "client", "examples", "accuracy"


def read_scores(
    reply: Message, clients: Iterable[int]
) -> tuple[dict[int, Scores], list[ClientFailure]]:
    """Return the scores of a node's clients, and why others of them have none."""
    if reply.has_error():
        reason = f"its node could not evaluate it: {reply.error.reason}"
        return {}, [ClientFailure(client, ERROR, reason) for client in clients]
    rows = _by_client(reply.content.metric_records[REPORT]) if REPORT in reply.content else {}
    return rows, unpack_failures(reply.content)


def summarise_clients(rows: Mapping[int, Scores]) -> dict[str, Any]:
    """Return mean, population std, worst and quartiles of the clients' accuracies (fractions).

    "client-accuracy-total" weighs clients by their test examples; of every further score that
    clients report, the mean over clients and the total are given in the same way. Empty if there
    are no clients.
    """
    if not rows:
        return {}
    columns = {name: np.array([rows[c][name] for c in sorted(rows)]) for name in _scores(rows)}
    examples = columns.pop(_EXAMPLES)
    summary: dict[str, Any] = {}
    for name, values in columns.items():
        summary[f"client-{name}-mean"] = float(values.mean())
        summary[f"client-{name}-total"] = float(np.average(values, weights=np.maximum(examples, 1)))
    accuracy = columns[_ACCURACY]
    summary["client-accuracy-std"] = float(accuracy.std())
    summary["client-accuracy-worst"] = float(accuracy.min())
    summary["client-worst"] = sorted(rows)[int(accuracy.argmin())]
    summary["client-accuracy-quartiles"] = np.quantile(accuracy, [0.25, 0.5, 0.75]).tolist()
    summary["client-count"] = len(accuracy)
    return summary


def _by_client(columns: MetricRecord) -> dict[int, Scores]:
    """Return each client's scores of one node's reply."""
    names = [name for name in columns if name != _CLIENT]
    lists = zip(*(columns[name] for name in names), strict=True)
    clients: list[int] = columns[_CLIENT]  # type: ignore[assignment]
    return {
        int(client): {name: float(value) for name, value in zip(names, values, strict=True)}
        for client, values in zip(clients, lists, strict=True)
    }


def _scores(rows: Mapping[int, Scores]) -> list[str]:
    """Return the scores that every client reports, in order."""
    common = set.intersection(*(set(row) for row in rows.values()))
    return [name for name in next(iter(rows.values())) if name in common]
