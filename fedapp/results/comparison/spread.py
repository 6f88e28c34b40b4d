"""Means and deviations over seeds, as columns of a table and as text."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LAST10 = "accuracy_last10"
RESULT_NUMBERS = ("accuracy_final", LAST10, "accuracy_best", "seconds")  # of summary.json

ACCURACIES = {"accuracy_final": "final", LAST10: "last 10", "accuracy_best": "best"}


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation (n - 1) of n values; a single value has no deviation."""

    mean: float
    std: float | None
    n: int

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread | None":
        """Return the spread of some values, or None if there are none."""
        values = list(values)
        if not values:
            return None
        std = statistics.stdev(values) if len(values) > 1 else None
        return cls(statistics.fmean(values), std, len(values))

    def percent(self) -> str:
        """Return the fractions as percentages: "94.12 ± 0.31 %"."""
        deviation = "" if self.std is None else f" ± {100 * self.std:.2f}"
        return f"{100 * self.mean:.2f}{deviation} %"


def spread_columns(values: Mapping[str, Iterable[float]]) -> dict[str, Any]:
    """Return the mean of each figure, and its deviation as FIGURE_std; None if there is none."""
    columns: dict[str, Any] = {}
    for figure, numbers in values.items():
        spread = Spread.of(numbers)
        columns |= {figure: spread and spread.mean, f"{figure}_std": spread and spread.std}
    return columns


def accuracy_texts(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, str | None]]:
    """Return the accuracies of rows with `spread_columns` and "seeds", by their words.

    Short runs have no mean of the last ten rounds; if no row has one, its column is left out.
    """
    keys = [k for k in ACCURACIES if k != LAST10 or any(row[k] is not None for row in rows)]
    return [
        {
            ACCURACIES[key]: None
            if row[key] is None
            else Spread(row[key], row[f"{key}_std"], len(row["seeds"])).percent()
            for key in keys
        }
        for row in rows
    ]
