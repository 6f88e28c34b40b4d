"""Measures of class accuracies, on the classes that a client has and on the others.

The inputs are class accuracies as fractions.
"""

import numpy as np


def in_local_accuracy(class_accuracy: np.ndarray, counts: np.ndarray) -> float:
    """Return sum_c p_c A_c: accuracy on the client's own class distribution p = counts / n.

    Both of shape [classes]; a client's training counts (FedNTD, section 3).
    """
    return _weighted(class_accuracy, counts / counts.sum())


def out_local_accuracy(class_accuracy: np.ndarray, counts: np.ndarray) -> float:
    """Return the accuracy on the opposite distribution, p~_c = (1 - p_c) / (C - 1).

    The weight of classes without test images, whose accuracy is NaN, is divided over the others.
    """
    shares, known = counts / counts.sum(), np.isfinite(class_accuracy)
    opposite = (1 - shares) / (len(shares) - 1)
    tested = 1 - opposite[~known].sum()
    return _weighted(class_accuracy, np.where(known, opposite, 0.0)) / float(tested)


def _weighted(class_accuracy: np.ndarray, weights: np.ndarray) -> float:
    """Sum weights * accuracies over the classes of positive weight; the others may be NaN."""
    used = weights > 0
    return float(np.sum(weights[used] * class_accuracy[used]))
