"""The console output of a run: one line per round, and the table at the end.

The functions only format text, so that the server's log, the tests and other front ends show the
same text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedapp.results.formatting import clock, decimal, headline, megabytes, percent, status

_MOST_FAILURES = 5  # of a round that are named


def round_line(
    row: Mapping[str, Any], total_rounds: int, elapsed: float, *, first_round: int = 1
) -> str:
    """Format one round of metrics.jsonl as one line.

    Args:
        row: the round's row.
        total_rounds: the last round of the run.
        elapsed: seconds since the start of `first_round`.
        first_round: the first round of this process, above 1 in a resumed run.
    """
    number = row["round"]
    remaining = elapsed / (number - first_round + 1) * (total_rounds - number)
    failed = f"  failed {row['failed']}" if row.get("failed") else ""
    if unevaluated := row.get("evaluation_failures"):
        failed += f"  not evaluated {len(unevaluated)}"
    if reinitialised := row.get("reinitialised"):
        failed += f"  started afresh {len(reinitialised)}"
    spent = f"  epsilon {row['epsilon']:.2f}" if "epsilon" in row else ""
    model = f"  global model {percent(row['global_accuracy'])}" if "global_accuracy" in row else ""
    return (
        f"round {number:>{len(str(total_rounds))}}/{total_rounds}"
        f"  accuracy {percent(row.get('accuracy')):>6}"
        f"{model}  loss {decimal(row.get('loss')):>6}"
        f"  train loss {decimal(row.get('train_loss')):>6}"
        f"  clients {row['clients']}{failed}"
        f"  {row['seconds']:.2f} s"
        f"  {megabytes(row['bytes_down'])} down  {megabytes(row['bytes_up'])} up{spent}"
        f"  ETA {clock(remaining)}"
    )


def failure_lines(failures: Sequence[str], known: Sequence[str]) -> list[str]:
    """Format the failures of a round that the round before had not, one line for each.

    Only the last line of a reason is given, which names the error of a traceback.
    """
    new = [failure for failure in failures if failure not in known]
    lines = [
        f"  {who}: {why.strip().splitlines()[-1] if why.strip() else 'no reason'}"
        for who, _, why in (failure.partition(": ") for failure in new[:_MOST_FAILURES])
    ]
    left = len(new) - len(lines)
    return [*lines, *([f"  and {left} more: see metrics.jsonl"] if left else [])]


def summary_text(summary: Mapping[str, Any], run_dir: str | Path) -> str:
    """Format the end-of-run table as plain text, one aligned line per entry."""
    run = " on ".join(str(summary[key]) for key in ("method", "dataset") if key in summary)
    items = [
        ("Run", run),
        ("Status", status(summary)),
        *headline(summary),
        ("Run directory", str(run_dir)),
    ]
    width = max(len(label) for label, _ in items)
    return "\n".join(f"{label:<{width}}  {text}" for label, text in items)
