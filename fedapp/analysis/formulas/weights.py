"""Measures of models' weights and neurons: the sizes and directions of clients' changes.

The weight alignment of FedNTD compares neurons instead of weights: a neuron agrees in two layers if
the same class activates it most in both.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from fedapp.analysis.formulas.features import mean, prototypes, wide

DEAD = -1


def class_activation(activations: np.ndarray, labels: np.ndarray, classes: int) -> np.ndarray:
    """Return the mean activation of each neuron on each class: [neurons, classes].

    `activations` [n, neurons] are those of test images of the classes `labels` [n].
    """
    return prototypes(wide(activations), labels, classes).T


def class_preference(by_class: np.ndarray) -> np.ndarray:
    """Return the class that activates each neuron most, from [neurons, classes]; -1 if dead.

    FedNTD (Lee et al. 2022), appendix M; a neuron that is 0 on every class is dead.
    """
    known = np.nan_to_num(by_class, nan=-np.inf)
    dead = np.all(np.nan_to_num(by_class) == 0, axis=1)
    return np.where(dead, DEAD, np.argmax(known, axis=1))


def weight_alignment(one: np.ndarray, other: np.ndarray) -> float:
    """Return the fraction of neurons with equal preferences; two dead neurons agree."""
    return float(np.mean(one == other))


def weight_divergence(
    one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray], order: int
) -> float:
    """Return the distance of two models over all arrays, in the norm of order 1 or 2.

    FedNTD (Lee et al. 2022), figure 8 and appendix A, uses order 1.
    """
    norms = [np.linalg.norm((wide(one[name]) - wide(other[name])).ravel(), order) for name in one]
    return float(np.linalg.norm(norms, order))


def distribution_distance(class_accuracy: np.ndarray, counts: np.ndarray, order: int) -> float:
    """Return the distance of the model's normalised class accuracies from a client's classes.

    ||A / sum(A) - counts / sum(counts)||, both [C] (FedNTD, section 5), in the norm of order 1 or
    2; NaN if no prediction is correct.
    """
    known = np.nan_to_num(wide(class_accuracy))
    if not known.sum():
        return float("nan")
    return float(np.linalg.norm(known / known.sum() - counts / counts.sum(), order))


def pearson(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the linear correlation of two lists of equal length; NaN if it is undefined."""
    pairs = wide(np.array([one, other]))
    pairs = pairs[:, ~np.isnan(pairs).any(axis=0)]
    if pairs.shape[1] < 2 or not pairs.std(axis=1).all():
        return float("nan")
    return float(np.corrcoef(pairs)[0, 1])


class GradientDiversity:
    """Mean ||g_k||^2 over ||mean g||^2, from updates added one by one.

    That is K times the gradient diversity of Yin et al. 2018 (their bound of the batch size), for K
    updates: values of different K cannot be compared.
    """

    def __init__(self) -> None:
        """Start without updates."""
        self.count, self.squares = 0, 0.0
        self.total: dict[str, np.ndarray] = {}

    def add(self, update: Mapping[str, np.ndarray]) -> None:
        """Add one client's update, arrays by name."""
        self.count += 1
        for name, array in update.items():
            exact = wide(array)
            self.squares += float(np.sum(exact**2))
            self.total[name] = self.total[name] + exact if name in self.total else exact

    def value(self) -> float:
        """Return the diversity: 1 for equal updates, K for K orthogonal ones of equal norm."""
        square_of_sum = sum(float(np.sum(array**2)) for array in self.total.values())
        if not square_of_sum:
            return float("nan")
        return self.squares * self.count / square_of_sum


def norm_means(vectors: np.ndarray, chosen: np.ndarray) -> tuple[float, float]:
    """Return the mean norm of the chosen rows of [n, d] and of the others; NaN without rows."""
    norms = np.linalg.norm(wide(vectors), axis=1)
    return mean(norms[chosen]), mean(norms[~chosen])
