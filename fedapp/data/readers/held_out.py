"""Test images for data that have none: a share of each class, the same on every host."""

import numpy as np

from fedapp.core.errors import UserError


def held_out(labels: np.ndarray, share: float, key: str = "test-share") -> np.ndarray:
    """Return which images are for tests, bool [n]: this share of each class, drawn once for all.

    A class with two images or more has at least one for tests and one for training.

    Raises:
        UserError: no class has two images.
    """
    rng = np.random.default_rng(0)
    chosen = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        count = min(max(1, round(len(members) * share)), len(members) - 1)
        chosen[members[:count]] = True
    if not chosen.any():
        raise UserError(f"no class has two images, so that {key} can hold none out for tests")
    return chosen
