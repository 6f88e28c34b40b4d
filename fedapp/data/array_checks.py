"""Checks of the arrays that a data set consists of, above all of a user's own function."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedapp.core.errors import UserError


def check_arrays(name: str, arrays: Mapping[str, Any], num_classes: int) -> None:
    """Raise UserError unless both splits have images of bytes and as many labels 0..C-1.

    The most usual mistake is images of floats in 0..1: divided by 255 again, they would be black.
    Images that are no array (files that are decoded later) are not looked at.
    """
    for split in ("train", "test"):
        images, labels = arrays[f"{split}_images"], np.asarray(arrays[f"{split}_labels"])
        if isinstance(images, np.ndarray):
            _check_images(f"the {split} images of dataset '{name}'", images)
        if labels.ndim != 1 or len(labels) != len(images):
            raise UserError(
                f"dataset '{name}' has {split} labels of shape {list(labels.shape)} for "
                f"{len(images)} images; each image needs one"
            )
        numbers = labels.dtype.kind in "iu"
        if not numbers or (len(labels) and not 0 <= labels.min() <= labels.max() < num_classes):
            raise UserError(
                f"the {split} labels of dataset '{name}' must be whole numbers from 0 to "
                f"{num_classes - 1}, positions in its list of classes"
            )


def _check_images(what: str, images: np.ndarray) -> None:
    shape = images.shape
    square = images.ndim == 4 and shape[1] == shape[2] and shape[3] in (1, 3)
    if images.dtype != np.uint8 or not square:
        raise UserError(
            f"{what} are {images.dtype} {list(shape)} but must be bytes from 0 to 255: uint8 "
            "[n, side, side, channels] with 1 or 3 channels"
        )


def check_statistics(name: str, mean: Sequence[float], std: Sequence[float]) -> None:
    """Raise UserError unless mean and deviation of the channels are on the scale 0..1."""
    if not all(0 <= value <= 1 for value in mean) or not all(0 < value <= 1 for value in std):
        raise UserError(
            f"dataset '{name}' has the mean {list(mean)} and the deviation {list(std)}, which must "
            "be on the scale 0 to 1 of pixels divided by 255, with a deviation above 0"
        )
