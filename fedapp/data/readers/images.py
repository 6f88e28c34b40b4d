"""Image folders of users' own data: train/CLASS/*.jpg and test/CLASS/*.jpg.

The images are decoded once into one uint8 array. Errors that would otherwise appear during training
(a damaged file, a different size, a class missing from the test set) are found and reported here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path

import numpy as np
import psutil

from fedapp.core.arrays import Arrays
from fedapp.core.errors import UserError
from fedapp.core.paths import absolute
from fedapp.core.progress import tracked
from fedapp.data.readers.cache import cached_arrays, file_version
from fedapp.data.readers.pixels import read_central_square, read_image

SUFFIXES = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".tif", ".tiff")
IMAGE_FOLDERS = "train/CLASS/*.jpg and test/CLASS/*.jpg (or .png, .webp, .bmp, .tif)"
_OTHER_IMAGES = (
    ".gif", ".heic", ".heif", ".avif", ".jp2", ".j2k", ".ppm", ".pgm", ".pnm", ".pbm", ".tga",
    ".dng", ".nef", ".cr2",
)  # fmt: skip
SPLITS = ("train", "test")
_STATISTICS_CHUNK = 1000
_MOST_PROBLEMS = 100  # images that cannot be used; then the others are not looked at
SCALE_THEM = "; set image-size=N to scale the central square of each image to N x N pixels"


@dataclass(frozen=True)
class ImageFiles:
    """The images of some class folders: their names, relative to the root, and labels int64 [n]."""

    names: list[str]
    labels: np.ndarray


def load_image_folder(data_dir: str, side: int = 0) -> Arrays:
    """Return classes, mean, std and the images and labels of both splits of an image folder.

    Images are RGB, or have one channel when all of them are greyscale. Mean and standard deviation
    are those of the training images. With `side` their central squares are scaled to it.

    Raises:
        UserError: the layout is wrong, a file cannot be read or, without `side`, differs in size.
    """
    if not data_dir:
        raise UserError(f"dataset 'images' needs data-dir: a folder with {IMAGE_FOLDERS}")
    root = absolute(data_dir, "data-dir")
    classes = _classes(root)
    splits = {split: images_by_class(root, [f"{split}/{c}" for c in classes]) for split in SPLITS}

    def decode() -> Arrays:
        images = decode_splits(root, splits, side)
        mean, std = channel_statistics(images["train_images"])
        return {"classes": np.array(classes), "mean": mean, "std": std, **images}

    return cached_arrays("images", scaled_source(root, side), file_versions(root, splits), decode)


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


def class_folders(folder: Path) -> list[str]:
    """Return the names of the folders in a folder, sorted, without hidden ones."""
    with os.scandir(folder) as entries:
        return sorted(e.name for e in entries if e.is_dir() and not e.name.startswith("."))


def _classes(root: Path) -> list[str]:
    """Check that both splits exist and have the same classes; return the class names."""
    by_split = {}
    for split in SPLITS:
        if not (root / split).is_dir():
            missing = f"no folder '{split}' in" if root.is_dir() else "there is no"
            raise UserError(f"{missing} data-dir {root}; it must be laid out as {IMAGE_FOLDERS}")
        by_split[split] = set(class_folders(root / split))
    for split, other in (SPLITS, SPLITS[::-1]):
        if extra := by_split[split] - by_split[other]:
            raise UserError(
                f"class '{min(extra)}' is in {root / split} but not in {root / other}; "
                "both must have the same class folders"
            )
    if len(by_split["train"]) < 2:
        raise UserError(f"{root / 'train'} must have at least two class folders")
    return sorted(by_split["train"])


def images_by_class(
    root: Path, folders: Sequence[str], labels: Sequence[int] | None = None
) -> ImageFiles:
    """List the images of one folder for each class, sorted by name; `labels`: of the folders.

    Raises UserError for a folder without images, or with images of kinds that are not read.
    """
    names: list[str] = []
    counts = np.zeros(len(folders), dtype=np.int64)
    for index, folder in enumerate(folders):
        files = _image_names(root / folder)
        names += [f"{folder}/{name}" for name in files]
        counts[index] = len(files)
    classes = range(len(folders)) if labels is None else labels
    return ImageFiles(names, np.repeat(np.array(classes, dtype=np.int64), counts))


def _image_names(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            visible = sorted(
                (each for each in entries if each.name[0] != "."), key=attrgetter("name")
            )
    except OSError as error:
        raise UserError(f"cannot read class folder {folder}: {error.strerror}") from error
    for entry in visible:
        if not entry.is_file():
            kind = "folder" if entry.is_dir() else "dangling link or device"
            raise UserError(
                f"class folder {folder} has a {kind} '{entry.name}': move its images into the "
                "class folder itself, or take it out of data-dir"
            )
    found = [each.name for each in visible]
    for name in found:
        if name.lower().endswith(_OTHER_IMAGES):
            raise UserError(
                f"{folder / name} is an image of a kind that is not read: convert it to .png, or "
                "take it out of data-dir"
            )
    names = [name for name in found if name.lower().endswith(SUFFIXES)]
    if not names:
        raise UserError(f"no image ({', '.join(SUFFIXES)}) in class folder {folder}")
    return names


def file_versions(root: Path, splits: Mapping[str, ImageFiles]) -> list[str]:
    """Return a text for each image that changes with its file."""
    names = [name for files in splits.values() for name in files.names]
    return [file_version(name, (root / name).stat()) for name in names]


def scaled_source(root: object, side: int) -> str:
    """Return the source of a cache entry whose images are scaled to `side`, or are not (0)."""
    return f"{root} at {side}" if side else str(root)


def decode_splits(root: Path, splits: Mapping[str, ImageFiles], side: int = 0) -> Arrays:
    """Return the images and labels of the splits, by "<split>_images" and "<split>_labels".

    With `side` the central squares of the images are scaled to it.

    Raises:
        UserError: a file cannot be read; or, without `side`, one is not square, or differs in size
            from the first.
    """
    read: Callable[[Path], np.ndarray] = partial(read_central_square, side=side)
    hint = ""
    if not side:
        first = root / next(name for files in splits.values() for name in files.names)
        read, hint = read_image, SCALE_THEM
        side = square_side(first, read_image(first))
    pixels = unify_channels(
        {split: read_images(root, files.names, side, read, hint) for split, files in splits.items()}
    )
    images = {f"{split}_images": array for split, array in pixels.items()}
    return {**images, **{f"{split}_labels": files.labels for split, files in splits.items()}}


def read_images(
    root: Path,
    names: Sequence[str],
    side: int,
    read: Callable[[Path], np.ndarray] = read_image,
    hint: str = "",
) -> tuple[np.ndarray, bool]:
    """Return the images uint8 [n, side, side, 3] and whether all of them are greyscale.

    `names` are relative to `root`; the rest is as in `stack_photos`.
    """
    paths = [root / name for name in names]
    return stack_photos(paths, lambda position: read(paths[position]), side, hint)


def stack_photos(
    names: Sequence[object], read: Callable[[int], np.ndarray], side: int, hint: str = ""
) -> tuple[np.ndarray, bool]:
    """Return photos as uint8 [n, side, side, 3], and whether all are greyscale.

    Args:
        names: of the photos, for errors.
        read: returns the photo at a position in `names` as uint8 [H, W, 1] or [H, W, 3].
        side: of the square images in pixels.
        hint: what to do about photos of another size.

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
    grey, problems = True, []
    for index in tracked(range(count), "decoding images", count):
        try:
            photo = read(index)
            _check_size(names[index], photo, side, hint)
        except UserError as problem:
            problems.append(str(problem))
            if len(problems) == _MOST_PROBLEMS:
                break
        else:
            grey = grey and photo.shape[2] == 1
            images[index] = photo  # broadcasts one grey channel to three
    if problems:
        raise UserError(_summary(problems))
    return images, grey


def _check_size(name: object, photo: np.ndarray, side: int, hint: str) -> None:
    if photo.shape[:2] != (side, side):
        raise UserError(
            f"all images must have the same size, but {name} is "
            f"{photo.shape[1]}x{photo.shape[0]} and not {side}x{side}{hint}"
        )


def _summary(problems: Sequence[str]) -> str:
    """Return one sentence about images that cannot be used: the first, and how many there are."""
    if len(problems) == 1:
        return problems[0]
    more = f"{len(problems) - 1}{' or more' if len(problems) == _MOST_PROBLEMS else ''}"
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
