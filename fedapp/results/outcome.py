"""How a run ended, and its best round."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedapp.results.run_directory import RunDirectory


def outcome(run: RunDirectory) -> str:
    """Return "completed", or "diverged", which a run would do again; "" if it has not ended."""
    summary = run.summary()
    if summary.get("status") == "completed":
        return "completed"
    return "diverged" if summary.get("diverged") else ""


def best_round(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the round with the highest accuracy, or {} if none was measured.

    A round in which some clients had no accuracy counts only if every round is like this, because
    the mean over the remaining clients may be too high.
    """
    return max(fully_tested(rows), key=lambda row: row["accuracy"], default={})


def fully_tested(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the rounds in which all clients were tested; without any, all rounds with a test."""
    measured = [row for row in rows if row.get("accuracy") is not None]
    return [row for row in measured if not row.get("unevaluated")] or measured
