"""A client's own images: class folders, matched by name with the federation's classes.

The run configuration lists the classes once; their order defines the labels on every host. A client
may lack some classes, or one split. A folder with another name is refused, because its images would
silently be left out or get the label of another class.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedapp.core.arrays import Arrays
from fedapp.core.errors import UserError
from fedapp.core.paths import absolute
from fedapp.data.readers.cache import cached_arrays
from fedapp.data.readers.images import (
    IMAGE_FOLDERS,
    SPLITS,
    ImageFiles,
    class_folders,
    decode_splits,
    file_versions,
    images_by_class,
)
from fedapp.data.readers.sources import Origin


def class_names(text: str) -> tuple[str, ...]:
    """Split "cat dog" or "cat, dog" into names; raises UserError unless there are two or more."""
    commas = "," in text
    names = tuple(name.strip() for name in (text.split(",") if commas else text.split()))
    if len(names) < 2 or len(set(names)) < len(names) or not all(names):
        raise UserError(
            f"run-config key 'classes' is '{text}' but must be two or more different class names, "
            "separated by spaces or commas"
        )
    return names


def load_named_images(data_dir: str, classes: Sequence[str], side: int = 0) -> Arrays:
    """Return the images and labels of both splits; a label is the position in `classes`.

    Images are normalised to -1..1, because clients' image statistics differ. With `side` their
    central squares are scaled to it.

    Raises:
        UserError: no folder, an unlisted class, a damaged image or, without `side`, one of another
            size.
    """
    if not data_dir:
        raise UserError(
            f"this host has no images: give it a data-dir with {IMAGE_FOLDERS}, a SuperNode by "
            "--node-config \"data-dir='/path'\""
        )
    root = absolute(data_dir, "data-dir")
    if not root.is_dir():
        raise UserError(f"data-dir {root} does not exist; it must have {IMAGE_FOLDERS}")
    splits = named_files(root, classes)
    if not any(files.names for files in splits.values()):
        raise UserError(
            f"no images in data-dir {root}; it must be laid out as {IMAGE_FOLDERS} (the server "
            "needs test/CLASS only, a client train/CLASS)"
        )

    def decode() -> Arrays:
        return {"classes": np.array(classes), **symmetric(decode_splits(root, splits, side))}

    versions = [*classes, *file_versions(root, splits)]
    source = Origin("images", image_size=side).source(root)
    return cached_arrays("own-images", source, versions, decode)


def symmetric(images: Arrays) -> Arrays:
    """Add the mean and deviation that normalise images to -1..1, whatever their statistics."""
    half = np.full(images["train_images"].shape[-1], 0.5)
    return {"mean": half, "std": half, **images}


def named_files(root: Path, classes: Sequence[str]) -> dict[str, ImageFiles]:
    """List the images of both splits with their labels; raises UserError for an unlisted class."""
    return {split: files_of_split(root, split, classes) for split in SPLITS}


def named_folders(root: Path, split: str) -> list[str]:
    """Return the names of a split's class folders, sorted; none without the split."""
    return class_folders(root / split) if (root / split).is_dir() else []


def files_of_split(root: Path, split: str, classes: Sequence[str]) -> ImageFiles:
    """List the images of one folder of class folders, `split`; a label is a position in `classes`.

    Raises UserError for a class folder that is none of them, or without images.
    """
    names = named_folders(root, split)
    for name in names:
        if name not in classes:
            raise UserError(
                f"class folder {root / split / name} is none of the run's classes "
                f"({', '.join(classes)}): rename it, or take it out of data-dir"
            )
    labels = [list(classes).index(name) for name in names]
    return images_by_class(root, [f"{split}/{name}" for name in names], labels)
