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
from fedapp.data.readers.cache import cached_arrays, file_version
from fedapp.data.readers.images import (
    SPLITS,
    image_entries,
    read_image,
    read_images,
    square_side,
    unify_channels,
)

LAYOUT = "train/CLASS/*.jpg and test/CLASS/*.jpg (or .jpeg, .png)"


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


def load_named_images(data_dir: str, classes: Sequence[str]) -> Arrays:
    """Return the images and labels of both splits; a label is the position in `classes`.

    Images are normalised to -1..1, because clients' image statistics differ.

    Raises:
        UserError: no folder, an unlisted class, a damaged image or one of another size.
    """
    if not data_dir:
        raise UserError(
            f"this host has no images: give it a data-dir with {LAYOUT}, a SuperNode by "
            "--node-config \"data-dir='/path'\""
        )
    root = absolute(data_dir, "data-dir")
    files = {split: _files(root, split, classes) for split in SPLITS}
    names = [name for split in files.values() for name, _ in split]
    if not names:
        raise UserError(f"no images in data-dir {root}; it must be laid out as {LAYOUT}")
    versions = [*classes, *(file_version(name, (root / name).stat()) for name in names)]
    return cached_arrays("own-images", str(root), versions, lambda: _decode(root, classes, files))


def _files(root: Path, split: str, classes: Sequence[str]) -> list[tuple[str, int]]:
    """List the images of one split with their labels."""
    folder = root / split
    class_folders = (
        sorted(p.name for p in folder.iterdir() if p.is_dir()) if folder.is_dir() else []
    )
    files = []
    for name in class_folders:
        if name.startswith("."):
            continue
        if name not in classes:
            raise UserError(
                f"class folder {folder / name} is none of the run's classes "
                f"({', '.join(classes)}): rename it, or take it out of data-dir"
            )
        label = list(classes).index(name)
        files += [(f"{split}/{name}/{e.name}", label) for e in image_entries(folder / name)]
    return files


def _decode(root: Path, classes: Sequence[str], files: dict[str, list[tuple[str, int]]]) -> Arrays:
    first = root / next(name for split in files.values() for name, _ in split)
    side = square_side(first, read_image(first))
    names = {split: [name for name, _ in listed] for split, listed in files.items()}
    pixels = unify_channels({split: read_images(root, names[split], side) for split in files})
    half = np.full(pixels["train"].shape[-1], 0.5)
    arrays = {"classes": np.array(classes), "mean": half, "std": half}
    for split, images in pixels.items():
        arrays[f"{split}_images"] = images
        arrays[f"{split}_labels"] = np.array([label for _, label in files[split]], dtype=np.int64)
    return arrays
