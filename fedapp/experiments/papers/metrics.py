"""The published metrics that a run measures, and their place in its summary.

A new metric needs one more row here; every published number in that metric can then be reproduced.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Summary = Mapping[str, Any]


@dataclass(frozen=True)
class PaperMetric:
    """The function that reads one published metric from summary.json, and its properties."""

    read: Callable[[Summary], float | None]  # on the scale of the paper
    unit: str
    analyses: str = ""  # the run-config value that makes a run measure it
    note: str = ""
    asks_clients: bool = False  # whether clients must evaluate the global model
    spread: Callable[[Sequence[float]], float] = statistics.stdev  # over seeds


def _percent(summary: Summary, name: str = "accuracy_final") -> float | None:
    fraction = summary.get(name)
    return None if fraction is None else 100 * fraction


def _mean_over_clients(summary: Summary) -> float | None:
    return _percent(summary, "client_accuracy_mean")


def _seconds_per_round(summary: Summary) -> float | None:
    return summary["seconds"] / summary["rounds"] if summary.get("rounds") else None


def _agreement(of: str) -> Callable[[Summary], float | None]:
    """Read the share of neurons of the last hidden layer that agree, from the run's measures."""
    return lambda summary: (summary.get("measures") or {}).get(f"weight-alignment/{of}")


ACCURACY = "accuracy_percent"
PERSONAL = "personalized_accuracy_percent"
OWN_IMAGES = " on each client's own images"  # after a metric of the global model
BEST = "best "  # before the metric of a table that reports its best round


def reports_best_round(setting: Mapping[str, Any]) -> bool:
    """Return whether a table with this setting has the results of the best rounds."""
    return str(setting.get("reported", "")).startswith(BEST)


PAPER_METRICS: dict[str, PaperMetric] = {
    ACCURACY: PaperMetric(_percent, "%"),
    f"{ACCURACY}{OWN_IMAGES}": PaperMetric(
        _mean_over_clients,
        "%",
        asks_clients=True,
        note="test: each client's own test images in batches of their own, by which BatchNorm "
        "normalises; that fits the published accuracies better than mixed batches, whose "
        "accuracy is the final one (docs/evidence.md)",
    ),
    f"{BEST}{ACCURACY}": PaperMetric(
        lambda summary: _percent(summary, "accuracy_best"),
        "%",
        note="best round, as published",
        spread=statistics.pstdev,  # as in the code on which FedDOR builds
    ),
    f"{PERSONAL} of the global model": PaperMetric(
        _mean_over_clients,
        "%",
        asks_clients=True,
        note="the global model on each client's own test split, mean over clients",
    ),
    PERSONAL: PaperMetric(_percent, "%", note="mean over clients, each on its own test split"),
    "alignment_ratio previous-global vs local": PaperMetric(
        _agreement("last_hidden"), "", "weight-alignment"
    ),
    "alignment_ratio previous-global vs new-global": PaperMetric(
        _agreement("last_hidden_global"), "", "weight-alignment"
    ),
    "accuracy_fraction": PaperMetric(lambda summary: summary.get("accuracy_final"), ""),
    "forgetting": PaperMetric(lambda summary: summary.get("forgetting"), "", "forgetting"),
    "seconds_per_round": PaperMetric(
        _seconds_per_round,
        "s",
        note="seconds depend on the machine, and the published "
        "rounds also test every client on the whole test set: even ratios differ",
    ),
}
