"""Measures of the features of test images: alignment with the classifier, drift, class structure.

Arrays are float64 inside, for any precision of the model. A split without images (the unobserved
classes of an IID client) gives NaN, which means over clients ignore.
"""

from dataclasses import dataclass

import numpy as np

_TINY = 1e-12


def wide(array: np.ndarray) -> np.ndarray:
    """Return an array in float64, for exact sums of many features."""
    return np.asarray(array, dtype=np.float64)


def unit(vectors: np.ndarray) -> np.ndarray:
    """Return vectors [..., d] divided by their norm; a zero vector stays zero."""
    rows = wide(vectors)
    return rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), _TINY)


def cosines(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the cosine of each row of [n, d] with the same row of another [n, d]: [n]."""
    return np.sum(unit(one) * unit(other), axis=-1)


def alignment(features: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return cos(f(x), w_y) of every image: [n], from features [n, d] and head rows [C, d].

    FedDr+ (Kim et al. 2025), section 2.2: the feature-classifier alignment before averaging.
    """
    return np.sum(unit(features) * unit(weights)[labels], axis=-1)


@dataclass(frozen=True)
class Drift:
    """The difference between a local and the global model's features of each image: arrays [n]."""

    distance: np.ndarray  # ||f_i - f_g||
    angle: np.ndarray  # radians
    norm_difference: np.ndarray  # ||f_i|| - ||f_g||


def drift(local: np.ndarray, received: np.ndarray) -> Drift:
    """Compare the features [n, d] of two models on the same images (FedDr+, section 3.3)."""
    local, received = wide(local), wide(received)
    return Drift(
        np.linalg.norm(local - received, axis=1),
        np.arccos(np.clip(cosines(local, received), -1.0, 1.0)),
        np.linalg.norm(local, axis=1) - np.linalg.norm(received, axis=1),
    )


def split_mean(values: np.ndarray, labels: np.ndarray, observed: np.ndarray) -> tuple[float, float]:
    """Return the mean of values [n] over images of observed and of unobserved classes.

    `observed` is a mask [C] of the classes that the client has; NaN if a split is empty.
    """
    seen = observed[labels]
    return mean(values[seen]), mean(values[~seen])


def mean(values: np.ndarray) -> float:
    """Return the mean without NaN values, or NaN if there are no others."""
    kept = wide(values)
    kept = kept[~np.isnan(kept)]
    return float(kept.mean()) if kept.size else float("nan")


def prototypes(features: np.ndarray, labels: np.ndarray, classes: int) -> np.ndarray:
    """Return the mean feature of each class, [classes, d]; NaN for a class without images."""
    sums = np.zeros((classes, features.shape[1]))
    np.add.at(sums, labels, features)
    with np.errstate(invalid="ignore"):
        return sums / np.bincount(labels, minlength=classes)[:, None]


@dataclass(frozen=True)
class FourFactors:
    """The four factors of a global model in FedFN (Kim et al. 2023, section 3)."""

    weight_similarity: np.ndarray  # [C, C], cosines of head rows
    inter_class: np.ndarray  # [C, C], cosines of class prototypes
    intra_class: np.ndarray  # [C], mean cosine of a class's features with its prototype
    prototype_weight: np.ndarray  # [C], cosine of prototype and head row

    def scalars(self) -> dict[str, float]:
        """Return one number per factor: off-diagonal means, and means over classes."""
        return {
            "weight_similarity": off_diagonal_mean(self.weight_similarity),
            "inter_class": off_diagonal_mean(self.inter_class),
            "intra_class": mean(self.intra_class),
            "prototype_weight": mean(self.prototype_weight),
        }


def four_factors(
    features: np.ndarray, labels: np.ndarray, weights: np.ndarray, normalise: bool = False
) -> FourFactors:
    """Compute the four factors from features [n, d], labels [n] and head rows [C, d].

    `normalise` computes prototypes of normalised features, for models whose head normalises them.
    """
    features = unit(features) if normalise else wide(features)
    centres = prototypes(features, labels, len(weights))
    directions, rows = unit(centres), unit(weights)
    to_centre = np.sum(unit(features) * directions[labels], axis=1)
    intra = [mean(to_centre[labels == label]) for label in range(len(weights))]
    return FourFactors(
        rows @ rows.T,
        directions @ directions.T,
        np.array(intra),
        np.sum(directions * rows, axis=1),
    )


def off_diagonal_mean(matrix: np.ndarray) -> float:
    """Return the mean of the off-diagonal entries of [C, C], without NaN values."""
    return mean(matrix[~np.eye(len(matrix), dtype=bool)])
