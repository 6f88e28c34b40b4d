"""A round's line of metrics.jsonl, without what callbacks add."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedapp.core.errors import UserError
from strategies.rounds.base import ClientStrategy
from strategies.rounds.records import LATE, ClientFailure


def round_row(strategy: ClientStrategy, server_round: int) -> dict[str, Any]:
    """Return a round's line of metrics.jsonl, without the results of its evaluation.

    Raises UserError for a number of the method that cannot be written.
    """
    row = trained_row(strategy, server_round)
    return row | _own_metrics(strategy, row)


def trained_row(strategy: ClientStrategy, server_round: int) -> dict[str, Any]:
    """Return what every method has in a round's line."""
    report, loss = strategy.report, strategy.report.train_loss
    row: dict[str, Any] = {
        "round": server_round,
        "seconds": 0.0,
        "wait_seconds": report.wait_seconds,
        "test_seconds": 0.0,
        "asked": report.asked,
        "clients": len(report.results),
        "failed": len(report.failures),
        "train_loss": None if math.isnan(loss) else loss,  # no client took or reported a step
        "accuracy": None,
        "loss": None,
        "bytes_down": report.bytes_down,
        "bytes_up": report.bytes_up,
        "client_bytes_down": report.client_bytes_down,
        "client_bytes_up": sum(result.payload for result in report.results),
        "images": sum(result.images for result in report.results),
        "lr": strategy.lr(server_round),
        "failures": _texts(report.failures),
        "class_accuracy": None,
    }
    if slowest := report.slowest:
        row["slowest_client"], row["slowest_seconds"] = slowest.client, slowest.seconds
    if report.evaluation_failures:
        row["evaluation_failures"] = _texts(report.evaluation_failures)
    if report.eval_bytes_down:
        row["eval_bytes_down"] = report.eval_bytes_down
        row["eval_bytes_up"] = report.eval_bytes_up
    if late := sum(failure.kind == LATE for failure in report.failures):
        row["late"] = late
    if reinitialised := [result.client for result in report.results if result.reinitialised]:
        row["reinitialised"] = reinitialised
    return row | report.client_accuracy


def _own_metrics(strategy: ClientStrategy, row: Mapping[str, Any]) -> dict[str, float]:
    """Return the method's numbers; raises UserError for one that `row` has or that is no number."""
    found = strategy.round_metrics()
    for name, value in found.items():
        if name in row or not isinstance(value, int | float | np.number):
            wrong = "is a field of every round" if name in row else f"is {value!r}, not a number"
            raise UserError(f"the metric '{name}' of {type(strategy).__name__} {wrong}")
    return found


def _texts(failures: Sequence[ClientFailure]) -> list[str]:
    return [f"client {failure.client}{failure.place}: {failure.reason}" for failure in failures]
