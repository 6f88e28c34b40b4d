"""The format of numbers for users, the same in the console, the summary and the report.

A missing value is a dash, a fraction is a percentage with one decimal, and traffic is always in MB
(10^6 bytes), so that lines and runs are easy to compare.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

MISSING = "-"


def cell_text(value: Any) -> str:
    """Format a value of any type in a table: a float with four significant digits."""
    if value is None:
        return MISSING
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def field_head(key: str) -> str:
    """Return a field of metrics.jsonl as a heading: client_count is "Client count"."""
    return key.replace("_", " ").capitalize()


def percent(fraction: float | None) -> str:
    """Format a fraction as a percentage: 0.953 is "95.3 %"."""
    return MISSING if fraction is None else f"{100 * fraction:.1f} %"


def whole_percent(fraction: float) -> str:
    """Format a fraction without decimals: 0.953 is "95 %"."""
    return f"{100 * fraction:.0f} %"


def decimal(value: float | None) -> str:
    """Format a loss: four decimals from 0.001 to 1000, otherwise four significant digits."""
    if value is None:
        return MISSING
    return f"{value:.4f}" if value == 0 or 0.001 <= abs(value) < 1000 else f"{value:.4g}"


def megabytes(count: float | None) -> str:
    """Format bytes as MB (10^6 bytes): one decimal, or three below 0.1 MB."""
    if count is None:
        return MISSING
    size = count / 1e6
    return f"{size:,.1f} MB" if size >= 0.1 or size == 0 else f"{size:.3f} MB"


def stored_size(count: int) -> str:
    """Format the most bytes that the clients' states may need; 0 is a size that is not known."""
    return f"up to {megabytes(count)}" if count else "of a size not known before"


def clock(seconds: float) -> str:
    """Format seconds as m:ss, or as h:mm:ss from one hour on."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def duration(seconds: float | None) -> str:
    """Format a run's time: seconds with one decimal; from two minutes on also as a clock."""
    if seconds is None:
        return MISSING
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds:,.0f} s ({clock(seconds)})"


def age(seconds: float) -> str:
    """Format how long ago something was, in its largest unit: "40 s", "12 min", "3 h", "5 days"."""
    for unit, length, limit in (("s", 1, 60), ("min", 60, 3600), ("h", 3600, 48 * 3600)):
        if seconds < limit:
            return f"{seconds // length:.0f} {unit}"
    return f"{seconds // 86400:.0f} days"


def headline(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """List the main results of a summary.json as (label, text) pairs in reading order."""
    best, best_round = summary.get("accuracy_best"), summary.get("best_round")
    rate = summary.get("images_per_second")
    speed = MISSING if rate is None else f"{rate:,.0f} (time of tests included)"
    round_text = "" if best is None or best_round is None else f" (round {best_round})"
    return [
        ("Final accuracy", percent(summary.get("accuracy_final"))),
        ("Best accuracy", percent(best) + round_text),
        *clients_headline(summary),
        *privacy_headline(summary),
        ("Rounds", str(summary.get("rounds", MISSING))),
        ("Time", duration(summary.get("seconds"))),
        *_shares_of_time(summary),
        ("Training images per second", speed),
        ("Sent to nodes", megabytes(summary.get("bytes_down"))),
        ("Sent by nodes", megabytes(summary.get("bytes_up"))),
    ]


def _shares_of_time(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """List how much of a run's time was waiting for clients, and tests, if that is known."""
    seconds, waiting = summary.get("seconds"), summary.get("wait_seconds")
    if not seconds or waiting is None:
        return []
    tests = whole_percent(summary["test_seconds"] / seconds)
    text = f"{whole_percent(waiting / seconds)} of the time (tests {tests})"
    return [("Waiting for clients", text)]


def privacy_headline(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """List the privacy that the run has spent, if it has counted it."""
    if summary.get("epsilon") is None:
        return []
    return [("Privacy", f"epsilon {summary['epsilon']:.2f} at delta {summary['delta']:g}")]


def clients_headline(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """List the results on the clients' test splits, if summary.json has them."""
    if summary.get("client_accuracy_mean") is None:
        return []
    mean, std = summary["client_accuracy_mean"], summary["client_accuracy_std"]
    low, middle, high = map(percent, summary["client_accuracy_quartiles"])
    worst = f"{percent(summary['client_accuracy_worst'])} (client {summary['client_worst']})"
    return [
        (_own_splits(summary), f"{percent(mean)} ± {100 * std:.1f} over clients"),
        ("Worst client", worst),
        ("Quartiles of the clients", f"{low}, {middle}, {high}"),
        *_new_clients(summary),
    ]


def _new_clients(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """List the accuracy of the clients that have never trained, if there are any."""
    if not summary.get("client_new_count"):
        return []
    mean, std = summary["client_new_accuracy_mean"], summary["client_new_accuracy_std"]
    label = f"{summary['client_new_count']} clients that never trained"
    return [(label, f"{percent(mean)} ± {100 * std:.1f} over clients")]


def _own_splits(summary: Mapping[str, Any]) -> str:
    """Return the label of the clients' mean accuracy: of which models, if the summary says it."""
    models = summary.get("client_accuracy_of")
    return f"Own test splits, {models}" if models else "Accuracy on own test splits"


def status(summary: Mapping[str, Any]) -> str:
    """Format a run's status with its reason, if it has one: "failed: no client replied"."""
    parts = [summary.get("status") or "unfinished", short_reason(summary)]
    return ": ".join(str(part) for part in parts if part)


def short_reason(summary: Mapping[str, Any]) -> str:
    """Return why a run ended as one line, "" if unsaid; of a traceback the first and last line."""
    lines = str(summary.get("reason") or "").strip().splitlines()
    return " ... ".join(dict.fromkeys(lines[:1] + lines[-1:]))


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]
