"""scikit-learn's handwritten digits: the data set that needs no files."""

from importlib.metadata import version

import numpy as np

from fedapp.core.arrays import Arrays
from fedapp.data.readers.cache import cached_arrays
from fedapp.data.readers.held_out import held_out
from fedapp.data.readers.sources import Origin

DIGITS_MEAN = (0.3055,)
DIGITS_STD = (0.3759,)


def read_digits(origin: Origin) -> Arrays:
    """Read scikit-learn's digits; cached, because importing scikit-learn takes seconds."""
    return cached_arrays("digits", "scikit-learn", [version("scikit-learn")], _decode)


def _decode() -> Arrays:
    """Scale 0..16 to 0..255 and hold out a fixed fifth of each class for the test set."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = np.rint(digits.images * 255 / 16).astype(np.uint8)[..., None]
    labels = digits.target.astype(np.int64)
    is_test = held_out(labels, 0.2)
    return {
        "classes": np.array([str(digit) for digit in range(10)]),
        "mean": np.array(DIGITS_MEAN),
        "std": np.array(DIGITS_STD),
        "train_images": images[~is_test],
        "train_labels": labels[~is_test],
        "test_images": images[is_test],
        "test_labels": labels[is_test],
    }
