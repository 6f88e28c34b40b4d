"""Precision, recall and F1 of each class, from the numbers of images that are taken for another.

In a confusion matrix [C, C] row i has the images of class i, column j those that a model takes for
class j.
"""

from typing import NamedTuple

import numpy as np


class Rates(NamedTuple):
    """Rates of each class in 0..1, [C] each; NaN where there is nothing to divide by."""

    precision: np.ndarray  # of the images taken for the class; NaN if there are none
    recall: np.ndarray  # of the images of the class; NaN if there are none
    f1: np.ndarray  # the harmonic mean of both; NaN for a class without images

    @property
    def balanced_accuracy(self) -> float:
        """The mean recall over the classes with images."""
        return float(np.nanmean(self.recall))

    @property
    def macro_f1(self) -> float:
        """The mean F1 over the classes with images."""
        return float(np.nanmean(self.f1))


def confusion_matrix(labels: np.ndarray, predicted: np.ndarray, num_classes: int) -> np.ndarray:
    """Return the confusion matrix, int64 [C, C], of labels [n] and predicted labels [n]."""
    cells = np.bincount(labels * num_classes + predicted, minlength=num_classes**2)
    return cells.reshape(num_classes, num_classes).astype(np.int64)


def rates(matrix: np.ndarray) -> Rates:
    """Return precision, recall and F1 of each class of a confusion matrix [C, C]."""
    right, images, taken = np.diag(matrix), matrix.sum(axis=1), matrix.sum(axis=0)
    with np.errstate(invalid="ignore"):
        f1 = np.where(images > 0, 2 * right / (images + taken), np.nan)
        return Rates(right / taken, right / images, f1)


def largest_confusions(matrix: np.ndarray, count: int) -> list[tuple[int, int]]:
    """Return up to `count` pairs (class, class it is taken for), those with most images first."""
    wrong = matrix - np.diag(np.diag(matrix))
    order = np.argsort(-wrong, axis=None, kind="stable")[:count]
    pairs = (divmod(int(cell), len(matrix)) for cell in order)
    return [(label, other) for label, other in pairs if wrong[label, other]]
