"""Evaluating a model on every client's own test split: the global one, or personal ones.

The papers report such accuracies as mean and spread over all clients, so every client counts, not
only the sampled ones, and the spread stands beside the mean.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import MetricRecord, RecordDict

from strategies.aggregate import UpdateRefused
from strategies.federation import check_clients
from strategies.records import DIVERGED, REPORT, ClientFailure, unpack_failures

Scores = dict[str, float]

_CLIENT, _EXAMPLES, _ACCURACY, _LOSS = "client", "examples", "accuracy", "loss"
_ALWAYS = {_EXAMPLES, _ACCURACY, _LOSS}


def read_scores(
    content: RecordDict, clients: Sequence[int]
) -> tuple[dict[int, Scores], list[ClientFailure]]:
    """Return the scores of a node's clients, and why others of them have none.

    A client with a score that is not finite is one of the others. Raises `UpdateRefused`, KeyError,
    TypeError or ValueError if the reply is malformed or not about exactly these clients.
    """
    rows = _rows(content.metric_records[REPORT]) if REPORT in content else []
    failures = unpack_failures(content)
    check_clients([client for client, _ in rows] + [f.client for f in failures], clients)
    unfit = [client for client, scores in rows if not np.isfinite(list(scores.values())).all()]
    reason = "a score of its evaluation is not finite"
    failures += [ClientFailure(client, DIVERGED, reason) for client in unfit]
    return {client: scores for client, scores in rows if client not in unfit}, failures


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


def _rows(columns: MetricRecord) -> list[tuple[int, Scores]]:
    """Return each client and its scores, of one node's reply."""
    names = [name for name in columns if name != _CLIENT]
    if missing := sorted(_ALWAYS - set(names)):
        raise UpdateRefused(f"its evaluation has no '{missing[0]}'")
    lists = zip(*(columns[name] for name in names), strict=True)
    clients: list[int] = columns[_CLIENT]  # type: ignore[assignment]
    return [
        (int(client), {name: float(value) for name, value in zip(names, values, strict=True)})
        for client, values in zip(clients, lists, strict=True)
    ]


def _scores(rows: Mapping[int, Scores]) -> list[str]:
    """Return the scores that every client reports, in order."""
    common = set.intersection(*(set(row) for row in rows.values()))
    return [name for name in next(iter(rows.values())) if name in common]
