"""Image folders of users' own data: train/CLASS/*.jpg and test/CLASS/*.jpg.

The images are decoded once into one uint8 array. Errors that would otherwise appear during training
(a damaged file, a different size, a class missing from the test set) are found and reported here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path

import numpy as np

from fedapp.core.arrays import Arrays
from fedapp.core.errors import UserError
from fedapp.core.paths import absolute
from fedapp.data.readers.cache import cached_arrays, file_version
from fedapp.data.readers.held_out import held_out
from fedapp.data.readers.pixels import read_central_square, read_image
from fedapp.data.readers.sources import Origin
from fedapp.data.readers.stacking import (
    SCALE_THEM,
    channel_statistics,
    square_side,
    stack_photos,
    unify_channels,
)

SUFFIXES = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".tif", ".tiff")
IMAGE_FOLDERS = "train/CLASS/*.jpg and test/CLASS/*.jpg (or .png, .webp, .bmp, .tif)"
_OTHER_IMAGES = (
    ".gif", ".heic", ".heif", ".avif", ".jp2", ".j2k", ".ppm", ".pgm", ".pnm", ".pbm", ".tga",
    ".dng", ".nef", ".cr2",
)  # fmt: skip
SPLITS = ("train", "test")
HOLD_OUT = "; set test-share=0.2 to hold a fifth of each class out for tests"


@dataclass(frozen=True)
class ImageFiles:
    """The images of some class folders: their names, relative to the root, and labels int64 [n]."""

    names: list[str]
    labels: np.ndarray

    def part(self, chosen: np.ndarray) -> ImageFiles:
        """Return the images that `chosen`, bool [n], marks."""
        return ImageFiles([self.names[row] for row in np.flatnonzero(chosen)], self.labels[chosen])


def load_image_folder(origin: Origin) -> Arrays:
    """Return classes, mean, std and the images and labels of both splits of an image folder.

    Images are RGB, or have one channel when all of them are greyscale. Mean and standard deviation
    are those of the training images.

    Raises:
        UserError: the layout is wrong, a file cannot be read or differs in size and is not to be
            scaled.
    """
    if not origin.data_dir:
        raise UserError(f"dataset 'images' needs data-dir: a folder with {IMAGE_FOLDERS}")
    root = absolute(origin.data_dir, "data-dir")
    if origin.test_share:
        classes, splits = _divided(root, origin.test_share)
    else:
        classes = _classes(root)
        splits = {s: images_by_class(root, [f"{s}/{c}" for c in classes]) for s in SPLITS}

    def decode() -> Arrays:
        images = decode_splits(root, splits, origin.image_size)
        mean, std = channel_statistics(images["train_images"])
        return {"classes": np.array(classes), "mean": mean, "std": std, **images}

    return cached_arrays("images", origin.source(root), file_versions(root, splits), decode)


def _divided(root: Path, share: float) -> tuple[list[str], dict[str, ImageFiles]]:
    """Return the classes, and the splits of which a share of each class is held out for tests.

    The class folders are in `root`, or in its folder "train".
    """
    if _is_split(root / "test"):
        raise UserError(
            f"run-config key 'test-share' is {share:g}, but data-dir {root} has a folder 'test' "
            "with test images; set it to 0"
        )
    if not root.is_dir():
        raise UserError(f"there is no data-dir {root}; it must have folders CLASS/*.jpg")
    inside = "train/" if _is_split(root / "train") else ""
    classes = class_folders(root / inside)
    _check_two(classes, root / inside)
    files = images_by_class(root, [f"{inside}{name}" for name in classes])
    is_test = held_out(files.labels, share)
    return classes, {"train": files.part(~is_test), "test": files.part(is_test)}


def _is_split(folder: Path) -> bool:
    """Return whether a folder may have class folders: one with images is a class, named anyhow."""
    return folder.is_dir() and not any(each.suffix.lower() in SUFFIXES for each in folder.iterdir())


def class_folders(folder: Path) -> list[str]:
    """Return the names of the folders in a folder, sorted, without hidden ones.

    Raises UserError for a link to nothing (a class would be missing, and all later labels wrong),
    and for an image beside the folders, which would be left out.
    """
    with os.scandir(folder) as entries:
        visible = [each for each in entries if not each.name.startswith(".")]
        for each in visible:
            if each.is_symlink() and not Path(each.path).exists():
                raise UserError(f"{each.path} is a link to nothing; mount its target or remove it")
            if each.name.lower().endswith(SUFFIXES) and each.is_file():
                raise UserError(f"{each.path} belongs to no class; move it into a class folder")
        return sorted(each.name for each in visible if each.is_dir())


def _classes(root: Path) -> list[str]:
    """Check that both splits exist and have the same classes; return the class names."""
    by_split = {}
    for split in SPLITS:
        if not (root / split).is_dir():
            missing = f"no folder '{split}' in" if root.is_dir() else "there is no"
            hint = HOLD_OUT if root.is_dir() else ""
            raise UserError(
                f"{missing} data-dir {root}; it must be laid out as {IMAGE_FOLDERS}{hint}"
            )
        by_split[split] = set(class_folders(root / split))
    for split, other in (SPLITS, SPLITS[::-1]):
        if extra := by_split[split] - by_split[other]:
            raise UserError(
                f"class '{min(extra)}' is in {root / split} but not in {root / other}; "
                "both must have the same class folders"
            )
    _check_two(by_split["train"], root / "train")
    return sorted(by_split["train"])


def _check_two(classes: Collection[str], folder: Path) -> None:
    if len(classes) < 2:
        raise UserError(f"{folder} must have at least two class folders")


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
