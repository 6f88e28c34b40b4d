"""Long-tailed training data: classes from frequent to rare, as in data from the real world.

The usual benchmarks are made so from balanced data sets (Cao et al. 2019, NeurIPS, section 4.1).
The test images stay as they are, so that every class counts equally there.
"""

import numpy as np

from fedapp.data.partition.assignment import Indices


def long_tailed(labels: Indices, factor: float, rng: np.random.Generator) -> Indices:
    """Choose the training images of a long-tailed data set at random.

    Class c of C keeps n * factor^(-c / (C - 1)) images, rounded down, at least one of those that it
    has; n is the mean number of images of a class. So class 0 keeps `factor` times as many images
    as the last class.

    Args:
        labels: the labels of all training images, [n].
        factor: the imbalance factor, 1 or more.
        rng: the generator that chooses the images.

    Returns:
        The positions of the images that stay, ascending.
    """
    classes = np.unique(labels)
    largest, last = len(labels) / len(classes), max(1, len(classes) - 1)
    kept = []
    for rank, label in enumerate(classes):
        members = np.flatnonzero(labels == label)
        count = max(1, int(largest * factor ** (-rank / last)))
        kept.append(rng.choice(members, min(count, len(members)), replace=False))
    return np.sort(np.concatenate(kept))
