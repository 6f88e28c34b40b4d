"""Decoded images of one size as one array, and their statistics."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import psutil

from fedapp.core.arrays import Arrays
from fedapp.core.errors import UserError
from fedapp.core.progress import tracked

_STATISTICS_CHUNK = 1000
_MOST_PROBLEMS = 100  # images that cannot be used; then the others are not looked at
SCALE_THEM = "; set image-size=N to scale the central square of each image to N x N pixels"


def stack_photos(
    names: Sequence[object], read: Callable[[int], np.ndarray], side: int, hint: str = ""
) -> tuple[np.ndarray, bool]:
    """Return photos as uint8 [n, side, side, 3], and whether all are greyscale.

    Args:
        names: of the photos, for errors.
        read: returns the photo at a position in `names` as uint8 [H, W, 1] or [H, W, 3].
        side: of the square images in pixels.
        hint: what to do about photos of another size, the end of the sentence.

    Raises:
        UserError: photos cannot be read or have another size (it tells how many), or this machine's
            memory cannot hold them all.
    """
    count = len(names)
    needed, memory = 3 * count * side**2, psutil.virtual_memory().total
    if needed > memory:
        raise UserError(
            f"{count} images of {side}x{side} pixels need {needed / 1e9:.0f} GB of memory, and "
            f"this machine has {memory / 1e9:.0f}: make the images smaller"
        )
    images = np.empty((count, side, side, 3), dtype=np.uint8)
    grey, problems, other_size = True, [], False
    for index in tracked(range(count), "decoding images", count):
        try:
            photo = read(index)
            _check_size(names[index], photo, side)
        except UserError as problem:
            problems.append(str(problem))
            other_size |= isinstance(problem, _OtherSizeError)
            if len(problems) == _MOST_PROBLEMS:
                break
        else:
            grey = grey and photo.shape[2] == 1
            images[index] = photo  # broadcasts one grey channel to three
    if problems:
        raise UserError(_summary(problems) + (hint if other_size else ""))
    return images, grey


class _OtherSizeError(UserError):
    """An image has another size than the others."""


def _check_size(name: object, photo: np.ndarray, side: int) -> None:
    if photo.shape[:2] != (side, side):
        raise _OtherSizeError(
            f"all images must have the same size, but {name} is "
            f"{photo.shape[1]}x{photo.shape[0]} and not {side}x{side}"
        )


def _summary(problems: Sequence[str]) -> str:
    """Return one sentence about images that cannot be used: the first, and how many there are."""
    if len(problems) == 1:
        return problems[0]
    more = f"{'at least ' if len(problems) == _MOST_PROBLEMS else ''}{len(problems) - 1}"
    return f"{problems[0]}; {more} more images cannot be used, for example: {problems[1]}"


def unify_channels(pixels: Mapping[str, tuple[np.ndarray, bool]]) -> Arrays:
    """Return each split's images, as uint8 [n, H, W, 1] if all images are greyscale.

    `pixels` has the results of `stack_photos` by split. Otherwise images keep three channels.
    """
    channels = 1 if all(grey for _, grey in pixels.values()) else 3
    return {
        split: np.ascontiguousarray(images[..., :channels]) for split, (images, _) in pixels.items()
    }


def square_side(name: object, photo: np.ndarray) -> int:
    """Return the side of a photo [H, W, channels]; raises UserError unless H is W."""
    height, width = photo.shape[:2]
    if height != width:
        raise UserError(f"images must be square, but {name} is {width}x{height}{SCALE_THEM}")
    return int(width)


def channel_statistics(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation per channel of uint8 [n, H, W, ch], on the scale 0..1.

    The deviation is at least one grey level, so that division by it is safe.
    """
    total = np.zeros(images.shape[-1])
    squares = np.zeros(images.shape[-1])
    for start in range(0, len(images), _STATISTICS_CHUNK):
        values = images[start : start + _STATISTICS_CHUNK].reshape(-1, images.shape[-1]) / 255.0
        total += values.sum(axis=0)
        squares += (values * values).sum(axis=0)
    pixels = images[..., 0].size
    mean = total / pixels
    return mean, np.sqrt(np.maximum(squares / pixels - mean * mean, 1 / 255**2))
