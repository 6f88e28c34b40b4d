"""Measures on class accuracies: what a model forgets, keeps, and knows of classes it did not see.

Everything here takes accuracies by class as fractions, which every run logs, so it costs nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

CLASS_ACCURACY_MEASURES = ("forgetting", "consistency")  # from what every run logs anyway


def forgetting(class_accuracy: np.ndarray) -> float:
    """Return the mean over classes of the drop from each class's best earlier accuracy.

    F = (1/C) sum_c max_{t<T} (A_c^(t) - A_c^(T)), with A of shape [rounds, classes], fractions,
    without the untrained model's round 0 (FedNTD, Lee et al. 2022, section 2).
    """
    if len(class_accuracy) < 2:
        return float("nan")
    return float(np.mean(np.max(class_accuracy[:-1], axis=0) - class_accuracy[-1]))


def consistency(class_accuracy: np.ndarray) -> np.ndarray:
    """Return the cosine of each round's class accuracies with the round before: [rounds - 1].

    A of shape [rounds, classes]; NaN where a round predicts nothing right (FedNTD, figure 2).
    """
    before, after = class_accuracy[:-1], class_accuracy[1:]
    with np.errstate(invalid="ignore", divide="ignore"):
        norms = np.linalg.norm(before, axis=1) * np.linalg.norm(after, axis=1)
        return np.sum(before * after, axis=1) / norms


def class_accuracy_of(predictions: np.ndarray, labels: np.ndarray, classes: int) -> np.ndarray:
    """Return the accuracy of each class, [classes]; NaN for a class without test images."""
    seen = np.bincount(labels, minlength=classes).astype(float)
    right = np.bincount(labels[predictions == labels], minlength=classes)
    with np.errstate(invalid="ignore"):
        return right / seen


def in_local_accuracy(class_accuracy: np.ndarray, counts: np.ndarray) -> float:
    """Return sum_c p_c A_c: accuracy on the client's own class distribution p = counts / n.

    Both of shape [classes]; a client's training counts (FedNTD, section 3).
    """
    return _weighted(class_accuracy, counts / counts.sum())


def out_local_accuracy(class_accuracy: np.ndarray, counts: np.ndarray) -> float:
    """Return the accuracy on the opposite distribution, p~_c = (1 - p_c) / (C - 1).

    Classes without test images, whose accuracy is NaN, leave their weight to the others.
    """
    shares, known = counts / counts.sum(), np.isfinite(class_accuracy)
    opposite = (1 - shares) / (len(shares) - 1)
    tested = 1 - opposite[~known].sum()
    return _weighted(class_accuracy, np.where(known, opposite, 0.0)) / float(tested)


def _weighted(class_accuracy: np.ndarray, weights: np.ndarray) -> float:
    """Sum weights * accuracies, without the classes of weight 0, whose accuracy may be NaN."""
    used = weights > 0
    return float(np.sum(weights[used] * class_accuracy[used]))


def class_accuracy_measures(analyses: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the measures asked for ("forgetting consistency") from a run's evaluated rounds."""
    words = analyses.split()
    rows = [row for row in rows if row["class_accuracy"] is not None]
    history = np.array([row["class_accuracy"] for row in rows], dtype=float)
    if len(rows):
        history = history[:, np.isfinite(history).all(axis=0)]  # without classes that none tests
    measures: dict[str, Any] = {}
    if "forgetting" in words:
        measures["forgetting"] = forgetting(history)
    if "consistency" in words:
        measures["consistency"] = float(np.nanmean(consistency(history))) if len(rows) > 1 else None
    return measures
