"""Measures of class accuracies, on the classes that a client has and on the others.

The inputs are class accuracies as fractions.
"""

import numpy as np


def in_local_accuracy(class_accuracy: np.ndarray, counts: np.ndarray) -> float:
    """Return sum_c p_c A_c: accuracy on the client's own class distribution p = counts / n.

    Both of shape [classes]; a client's training counts (FedNTD, section 3). The weight of classes
    without test images, whose accuracy is NaN, is divided over the others; NaN if no class is left.
    """
    return _mean(class_accuracy, counts / counts.sum())


def out_local_accuracy(class_accuracy: np.ndarray, counts: np.ndarray) -> float:
    """Return the accuracy on the opposite distribution, p~_c = (1 - p_c) / (C - 1).

    Classes without test images as in `in_local_accuracy`.
    """
    shares = counts / counts.sum()
    return _mean(class_accuracy, (1 - shares) / (len(shares) - 1))


def _mean(class_accuracy: np.ndarray, weights: np.ndarray) -> float:
    """Return the weighted mean over the classes whose accuracy is known; the weights sum to 1."""
    known = np.isfinite(class_accuracy)
    tested = 1 - weights[~known].sum()
    if not weights[known].any():
        return float("nan")
    return float(np.sum(weights[known] * class_accuracy[known]) / tested)
