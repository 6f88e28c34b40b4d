"""Which published metrics a run measures, and where they stand in its summary.

A metric that gets measured later becomes one more row here; every published number in that metric
can then be reproduced.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Summary = Mapping[str, Any]


@dataclass(frozen=True)
class Measure:
    """How to read one published metric from summary.json."""

    read: Callable[[Summary], float | None]  # on the scale of the paper
    unit: str
    analyses: str = ""  # the run-config value that makes a run measure it
    note: str = ""


def _percent(summary: Summary) -> float | None:
    fraction = summary.get("accuracy_final")
    return None if fraction is None else 100 * fraction


def _seconds_per_round(summary: Summary) -> float | None:
    return summary["seconds"] / summary["rounds"] if summary.get("rounds") else None


MEASURES: dict[str, Measure] = {
    "accuracy_percent": Measure(_percent, "%"),
    "accuracy_fraction": Measure(lambda summary: summary.get("accuracy_final"), ""),
    "forgetting": Measure(lambda summary: summary.get("forgetting"), "", "forgetting"),
    "seconds_per_round": Measure(
        _seconds_per_round, "s", note="seconds depend on the machine: compare their ratios"
    ),
}
