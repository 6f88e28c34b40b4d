"""Evaluating a model on every client's own test split: the global one, or personal ones.

The papers report such accuracies as mean and spread over all clients, so every client counts, not
only the sampled ones, and the spread stands beside the mean.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import MetricRecord, RecordDict

from strategies.aggregate import UpdateRefused
from strategies.rounds.federation import check_clients
from strategies.rounds.records import DIVERGED, REPORT, ClientFailure, unpack_failures

Scores = dict[str, float]

_CLIENT, _EXAMPLES, _ACCURACY, _LOSS = "client", "examples", "accuracy", "loss"
REINITIALISED = "reinitialised"  # 1: what the client kept was lost, and its initial model counts
_ALWAYS = {_EXAMPLES, _ACCURACY, _LOSS}


def read_scores(
    content: RecordDict, clients: Sequence[int]
) -> tuple[dict[int, Scores], list[ClientFailure]]:
    """Return the scores of a node's clients, and why others of them have none.

    A client whose accuracy is no number is one of the others. One with another score that is not
    finite, such as its loss, is named as well but has its place in the accuracies. Raises
    `UpdateRefused`, KeyError, TypeError or ValueError if the reply is malformed or not about
    exactly these clients.
    """
    rows = _rows(content.metric_records[REPORT]) if REPORT in content else []
    failures = unpack_failures(content)
    check_clients([client for client, _ in rows] + [f.client for f in failures], clients)
    unfit = [client for client, scores in rows if not np.isfinite(list(scores.values())).all()]
    reason = "a score of its evaluation is not finite"
    failures += [ClientFailure(client, DIVERGED, reason) for client in unfit]
    return {client: scores for client, scores in rows if _counts(scores)}, failures


def summarise_clients(rows: Mapping[int, Scores]) -> dict[str, Any]:
    """Return mean, population std, worst and quartiles of the clients' accuracies (fractions).

    "client-accuracy-total" weighs clients by their test examples; of every further score that
    clients report, the mean over clients and the total are given in the same way, without values
    that are not finite. A client without test examples has no accuracy and is left out;
    "client-count" is the number of the others. Empty if there are none.
    """
    clients = sorted(client for client, scores in rows.items() if scores[_EXAMPLES] > 0)
    if not clients:
        return {}
    columns = {name: np.array([rows[c][name] for c in clients]) for name in _scores(rows)}
    examples, afresh = columns.pop(_EXAMPLES), columns.pop(REINITIALISED, np.zeros(1))
    summary: dict[str, Any] = {"client-reinitialised": int(afresh.sum())} if afresh.any() else {}
    for name, values in columns.items():
        if (finite := np.isfinite(values)).any():
            mean = np.average(values[finite], weights=examples[finite])
            summary[f"client-{name}-mean"] = float(values[finite].mean())
            summary[f"client-{name}-total"] = float(mean)
    accuracy = columns[_ACCURACY]
    summary["client-accuracy-std"] = float(accuracy.std())
    summary["client-accuracy-worst"] = float(accuracy.min())
    summary["client-worst"] = clients[int(accuracy.argmin())]
    summary["client-accuracy-quartiles"] = np.quantile(accuracy, [0.25, 0.5, 0.75]).tolist()
    summary["client-count"] = len(clients)
    return summary


def _counts(scores: Scores) -> bool:
    """Tell whether a client's accuracy is a share of a number of examples."""
    return 0.0 <= scores[_ACCURACY] <= 1.0 and 0.0 <= scores[_EXAMPLES] < np.inf


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
