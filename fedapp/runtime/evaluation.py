"""Evaluating the global model on the global test set, class by class."""

import math
from dataclasses import dataclass

import numpy as np
from torch import nn

from clients.training.evaluation import Score, predict
from clients.training.local_training import Batches


@dataclass(frozen=True)
class Evaluation:
    """Accuracies are fractions of the test images; the loss is the logits' mean cross-entropy."""

    accuracy: float
    loss: float
    class_accuracy: list[float]  # NaN where the test set has no image of a class


def evaluate_classes(model: nn.Module, batches: Batches, num_classes: int) -> Evaluation:
    """Evaluate a model, in eval mode, on batches of images and labels."""
    score, seen, correct = Score(), np.zeros(num_classes), np.zeros(num_classes)
    for _, logits, labels in predict(model, batches):
        hits = labels[score.add(logits, labels)]
        seen += np.bincount(labels.cpu().numpy(), minlength=num_classes)
        correct += np.bincount(hits.cpu().numpy(), minlength=num_classes)
    with np.errstate(invalid="ignore"):
        by_class = correct / seen
    return Evaluation(score.accuracy, score.loss, by_class.tolist())


def at_chance(accuracy: float, labels: np.ndarray) -> bool:
    """Return whether an accuracy on the test labels [m] is no better than a guess's.

    A guess names the commonest class, and may be lucky by two standard deviations of m draws. A
    model of dead features ends there: training has diverged, though its loss stays finite.
    """
    share = np.bincount(labels).max() / len(labels)
    return bool(accuracy <= share + 2 * math.sqrt(share * (1 - share) / len(labels)))
