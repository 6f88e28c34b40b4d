"""The best values of a sweep for each method, in a sentence: which learning rate, for example."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedapp.experiments.sweep import SweepRun
from fedapp.results.comparison.spread import ACCURACIES, LAST10
from fedapp.results.formatting import percent

_CAUTION = "these are test accuracies: choose with validation-share=0.1, and report without it"


def best_values(runs: Sequence[SweepRun], summary: Sequence[Mapping[str, Any]]) -> str:
    """Name each method's values with the highest mean accuracy, if others were tried too.

    It is the mean of the last ten rounds if all runs have one, which varies less than the last.
    The sentence is empty if no method has values to choose from.

    Args:
        runs: of the sweep.
        summary: its combinations, as by `sweep.summarise`.
    """
    values = {each.combination: each.varied for each in runs}
    done = [row for row in summary if row["accuracy_final"] is not None]
    by_method: dict[str, list[Mapping[str, Any]]] = {}
    for row in done:
        by_method.setdefault(str(values[row["combination"]].get("method", "")), []).append(row)
    key = LAST10 if all(row[LAST10] is not None for row in done) else "accuracy_final"
    found = []
    for method, rows in by_method.items():
        if len(rows) > 1:
            best = max(rows, key=lambda row: row[key])
            chosen = {k: v for k, v in values[best["combination"]].items() if k != "method"}
            words = " ".join(f"{k}={v}" for k, v in chosen.items())
            found.append(f"{f'{method}: ' if method else ''}{words} ({percent(best[key])})")
    tested = any(not each.config.get("validation-share") for each in runs)
    caution = f"; {_CAUTION}" if tested else ", on validation images"
    return f"best {ACCURACIES[key]}: {', '.join(found)}{caution}" if found else ""
