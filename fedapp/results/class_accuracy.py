"""Measures of the class accuracies that every run records: forgetting and consistency."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def forgetting(class_accuracy: np.ndarray) -> float:
    """Return the mean over classes of the drop from each class's best earlier accuracy.

    F = (1/C) sum_c max_{t<T} (A_c^(t) - A_c^(T)), with A of shape [rounds, classes], fractions,
    without the untrained model's round 0 (FedNTD, Lee et al. 2022, section 2).
    """
    if len(class_accuracy) < 2:
        return float("nan")
    return float(np.mean(np.max(class_accuracy[:-1], axis=0) - class_accuracy[-1]))


def consistency(class_accuracy: np.ndarray) -> np.ndarray:
    """Return the cosine of each round's class accuracies with the previous round's: [rounds - 1].

    The input has shape [rounds, classes]. NaN if a round has no correct prediction (FedNTD, figure
    2).
    """
    before, after = class_accuracy[:-1], class_accuracy[1:]
    with np.errstate(invalid="ignore", divide="ignore"):
        norms = np.linalg.norm(before, axis=1) * np.linalg.norm(after, axis=1)
        return np.sum(before * after, axis=1) / norms


def class_accuracy_words(analyses: str) -> list[str]:
    """Return the measures of this module among the words of the key `analyses`."""
    return [word for word in analyses.split() if word in ("forgetting", "consistency")]


def class_accuracy_measures(analyses: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the measures in `analyses` ("forgetting consistency") from evaluated rounds."""
    words = class_accuracy_words(analyses)
    rows = [row for row in rows if row["class_accuracy"] is not None]
    history = np.array([row["class_accuracy"] for row in rows], dtype=float)
    if len(rows):
        history = history[:, np.isfinite(history).all(axis=0)]  # tested classes
    measures: dict[str, Any] = {}
    if words:
        measures["class_accuracy_rounds"] = len(rows)  # with fewer tests both are smaller
    if "forgetting" in words:
        measures["forgetting"] = forgetting(history)
    if "consistency" in words:
        measures["consistency"] = float(np.nanmean(consistency(history))) if len(rows) > 1 else None
    return measures
