"""Evaluation of the global model on the global test set, in total and per class."""

import math
from dataclasses import dataclass

import numpy as np
from torch import nn

from clients.training.evaluation import Score, predict
from clients.training.local_training import Batches


@dataclass(frozen=True)
class Evaluation:
    """The result of one evaluation: accuracies in 0..1 and the mean cross-entropy of the logits."""

    accuracy: float
    loss: float
    class_accuracy: list[float]  # NaN for a class without test images


def evaluate_classes(model: nn.Module, batches: Batches, num_classes: int) -> Evaluation:
    """Evaluate a model, in eval mode, on batches of images and labels."""
    score = Score()
    for _, logits, targets in predict(model, batches):
        score.add(logits, targets)
    by_class = accuracy_by_class(*score.labels_and_hits(), num_classes)
    return Evaluation(score.accuracy, score.loss, by_class.tolist())


def accuracy_by_class(labels: np.ndarray, hits: np.ndarray, num_classes: int) -> np.ndarray:
    """Return the accuracy of each class, [num_classes]; NaN for a class without test images.

    `hits` says of each image with one of the `labels` whether its prediction is correct, [n].
    """
    counts = np.bincount(labels, minlength=num_classes)
    correct = np.bincount(labels, weights=hits, minlength=num_classes)
    with np.errstate(invalid="ignore"):
        return correct / counts


def at_chance(accuracy: float, labels: np.ndarray) -> bool:
    """Return whether an accuracy on the test labels [m] is no better than chance.

    Chance is the share of the most frequent class plus two standard deviations of m draws. A model
    with dead features ends there: its training has diverged although its loss is finite.
    """
    share = np.bincount(labels).max() / len(labels)
    return bool(accuracy <= share + 2 * math.sqrt(share * (1 - share) / len(labels)))
