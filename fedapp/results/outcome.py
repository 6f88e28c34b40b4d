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
    measured = [row for row in rows if row.get("accuracy") is not None]
    complete = [row for row in measured if not row.get("unevaluated")]
    return max(complete or measured, key=lambda row: row["accuracy"], default={})
