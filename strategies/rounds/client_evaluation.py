"""Evaluation of the global model, or of personal models, on every client's own test split.

The papers report the mean and the spread of these accuracies over all clients. Therefore every
client is evaluated, not only the sampled ones, and the spread is reported with the mean.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import MetricRecord, RecordDict

from strategies.aggregate import UpdateRefused
from strategies.rounds.records import DIVERGED, REPORT, ClientFailure, unpack_failures
from strategies.rounds.report import LARGEST_REPORTED, check_clients

Scores = dict[str, float]

_CLIENT, _EXAMPLES, _ACCURACY, _LOSS = "client", "examples", "accuracy", "loss"
REINITIALISED = "reinitialised"  # 1: the client's state was lost; its initial model was evaluated
CLUSTER = "cluster"  # the number of a model, which has no mean
_OF_NEW = ("count", "accuracy_mean", "accuracy_std")  # figures of clients that never train
_ALWAYS = {_EXAMPLES, _ACCURACY, _LOSS}


def read_scores(
    content: RecordDict, clients: Sequence[int]
) -> tuple[dict[int, Scores], list[ClientFailure]]:
    """Return the scores of a node's clients and the failures of those without scores.

    A client whose accuracy or loss is not finite has a failure and no scores: the largest of logits
    that are NaN is that of class 0. A client with another non-finite score has a failure and
    scores. A score so large that a sum could overflow counts as infinite. Raises `UpdateRefused`,
    KeyError, TypeError or ValueError if the reply is malformed or does not report exactly these
    clients.
    """
    rows = _rows(content.metric_records[REPORT]) if REPORT in content else []
    failures = unpack_failures(content)
    check_clients([client for client, _ in rows] + [f.client for f in failures], clients)
    unfit = [client for client, scores in rows if not np.isfinite(list(scores.values())).all()]
    reason = "a score of its evaluation is not finite"
    failures += [ClientFailure(client, DIVERGED, reason) for client in unfit]
    return {client: scores for client, scores in rows if _is_valid(scores)}, failures


def summarise_clients(rows: Mapping[int, Scores], training: int | None = None) -> dict[str, Any]:
    """Return mean, population std, worst and quartiles of the clients' accuracies, as fractions.

    "client_accuracy_total" weights clients by their test examples. Every further score that all
    clients report, but "cluster", also has a mean over clients and a total, over its finite values.
    A client without test examples has no accuracy and is left out; "client_count" is the number of
    the others. The result is empty if there are none.

    Clients whose number is not below `training` never train. They count in "client_new_count",
    "client_new_accuracy_mean" and "client_new_accuracy_std" only.
    """
    new = {c: scores for c, scores in rows.items() if training is not None and c >= training}
    summary = _summary({c: scores for c, scores in rows.items() if c not in new})
    of_new = _summary(new) if summary else {}
    return summary | {f"client_new_{key}": of_new[f"client_{key}"] for key in _OF_NEW if of_new}


def _summary(rows: Mapping[int, Scores]) -> dict[str, Any]:
    clients = sorted(client for client, scores in rows.items() if scores[_EXAMPLES] > 0)
    if not clients:
        return {}
    columns = {name: np.array([rows[c][name] for c in clients]) for name in _scores(rows)}
    examples, reinitialised = columns.pop(_EXAMPLES), columns.pop(REINITIALISED, np.zeros(1))
    columns.pop(CLUSTER, None)
    summary: dict[str, Any] = (
        {"client_reinitialised": int(reinitialised.sum())} if reinitialised.any() else {}
    )
    for name, values in columns.items():
        if (finite := np.isfinite(values)).any():
            mean = np.average(values[finite], weights=examples[finite])
            summary[f"client_{name}_mean"] = float(values[finite].mean())
            summary[f"client_{name}_total"] = float(mean)
    accuracy = columns[_ACCURACY]
    summary["client_accuracy_std"] = float(accuracy.std())
    summary["client_accuracy_worst"] = float(accuracy.min())
    summary["client_worst"] = clients[int(accuracy.argmin())]
    summary["client_accuracy_quartiles"] = np.quantile(accuracy, [0.25, 0.5, 0.75]).tolist()
    summary["client_count"] = len(clients)
    return summary


def _is_valid(scores: Scores) -> bool:
    """Return whether the scores that are counted or compared are in their valid ranges."""
    is_counted = 0.0 <= scores[_EXAMPLES] < np.inf and scores.get(REINITIALISED, 0.0) in (0.0, 1.0)
    return is_counted and 0.0 <= scores[_ACCURACY] <= 1.0 and bool(np.isfinite(scores[_LOSS]))


def _rows(columns: MetricRecord) -> list[tuple[int, Scores]]:
    """Return each client of a node's reply with its scores."""
    names = [name for name in columns if name != _CLIENT]
    if missing := sorted(_ALWAYS - set(names)):
        raise UpdateRefused(f"its evaluation has no '{missing[0]}'")
    lists = zip(*(columns[name] for name in names), strict=True)
    clients: list[int] = columns[_CLIENT]  # type: ignore[assignment]
    return [
        (int(client), {name: _number(value) for name, value in zip(names, values, strict=True)})
        for client, values in zip(clients, lists, strict=True)
    ]


def _number(value: Any) -> float:
    return float(value) if abs(value) <= LARGEST_REPORTED else np.inf


def _scores(rows: Mapping[int, Scores]) -> list[str]:
    """Return the scores that every client reports, in order."""
    common = set.intersection(*(set(row) for row in rows.values()))
    return [name for name in next(iter(rows.values())) if name in common]
