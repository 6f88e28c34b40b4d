"""The rows of a data set of the Hugging Face hub, decoded to images and labels."""

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import numpy as np

from fedapp.core.arrays import Arrays
from fedapp.core.errors import UserError
from fedapp.core.paths import cache_folder
from fedapp.data.readers.held_out import held_out
from fedapp.data.readers.images import HOLD_OUT
from fedapp.data.readers.pixels import central_square, to_bytes
from fedapp.data.readers.sources import Origin
from fedapp.data.readers.stacking import (
    SCALE_THEM,
    channel_statistics,
    square_side,
    stack_photos,
    unify_channels,
)

TEST_SPLITS = ("test", "validation", "valid", "val")
CONVERTED_MARK = ".hub-converted"  # in a copy of the hub's conversion: SUBSET/SPLIT/0000.parquet
_PARTIAL = "partial-"  # before the name of a split of which the hub has converted the first 5 GB
LABELS = ("label", "fine_label", "labels")


def library(name: str) -> ModuleType:
    """Import a library of the extra "hub"; raises UserError if it is not installed."""
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError as error:
        raise UserError(
            f"data sets of the hub need the package '{name}' ({error}); install it with "
            "pip install -e '.[hub]'"
        ) from error


def decode(root: Path, subset: str, origin: Origin) -> Arrays:
    """Return classes, mean, std and the images and labels of both splits of a copy in `root`.

    Raises:
        UserError: the library is missing, or the files are damaged or not images with labels.
    """
    datasets = library("datasets")
    asked: dict[str, Any] = {"path": str(root), "name": subset or None}
    if (root / CONVERTED_MARK).exists():  # its README describes the original files
        asked = {"path": "parquet", "data_files": _converted(root, subset)}
    # The library's own copy, in Arrow, is needed only until the images are decoded.
    cache_folder().mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=cache_folder(), prefix=".hub-") as scratch:
        try:
            splits = datasets.load_dataset(**asked, cache_dir=scratch)
        except Exception as error:  # damaged files, unknown subsets: dozens of types
            first = str(error).strip().partition("\n")[0]
            raise UserError(f"cannot read the Parquet files in {root}: {first}") from error
        return _arrays(root, splits, origin)


def _converted(root: Path, subset: str) -> dict[str, list[str]]:
    """Return the files of each split of one subset of the hub's conversion to Parquet.

    Raises:
        UserError: there are several subsets and none is named, or no such one, or only a part.
    """
    files = sorted(root.glob("*/*/*.parquet"))
    subsets = sorted({file.parent.parent.name for file in files})
    chosen = subset or (subsets[0] if len(subsets) == 1 else "")
    if chosen not in subsets:
        what = f"no subset '{subset}'" if subset else f"{len(subsets)} subsets"
        raise UserError(
            f"the data in {root} have {what}: name one of {', '.join(subsets)}, as "
            "hub:OWNER/NAME:SUBSET"
        )
    splits: dict[str, list[str]] = {}
    for file in files:
        if file.parent.parent.name == chosen:
            splits.setdefault(file.parent.name, []).append(str(file))
    for name in splits:
        if name.startswith(_PARTIAL):
            raise UserError(
                f"the hub has converted only the first 5 GB of {name.removeprefix(_PARTIAL)} to "
                f"Parquet files ({root / chosen / name}); set data-dir to image folders or whole "
                "Parquet files of your own"
            )
    return splits


def _arrays(root: Path, found: Mapping[str, Any], origin: Origin) -> Arrays:
    train = found.get("train")
    if train is None:
        raise UserError(f"the data in {root} have the splits {sorted(found)}, not train and test")
    image, label = _columns(root, train.features)
    names = getattr(train.features[label], "names", None)
    test = _test_of(root, found, label, origin.test_share)
    splits = {"train": train} if test is None else {"train": train, "test": test}
    for split, rows in splits.items():
        if not len(rows):
            raise UserError(f"the split {split} in {root} is empty")
    labels = {s: _labels(root, s, rows, label, names) for s, rows in splits.items()}
    photos = {s: _Photos(root, s, rows, image, range(len(rows))) for s, rows in splits.items()}
    if test is None:
        is_test = held_out(labels["train"], origin.test_share)
        parts = {"train": np.flatnonzero(~is_test), "test": np.flatnonzero(is_test)}
        photos = {s: replace(photos["train"], chosen=rows) for s, rows in parts.items()}
        labels = {s: labels["train"][rows] for s, rows in parts.items()}
    pixels = _pixels(photos, origin.image_size)
    highest = max(int(values.max()) for values in labels.values())
    arrays: Arrays = {"classes": np.array(names or list(map(str, range(highest + 1))))}
    for split in pixels:
        arrays[f"{split}_images"], arrays[f"{split}_labels"] = pixels[split], labels[split]
    arrays["mean"], arrays["std"] = channel_statistics(pixels["train"])
    return arrays


def _test_of(root: Path, found: Mapping[str, Any], label: str, share: float) -> Any:
    """Return the test split; None if a share of the training split is to be held out instead.

    A split without labels, such as the test images of a competition, is none.

    Raises:
        UserError: there is none and nothing is to be held out, or both.
    """
    there = [split for split in TEST_SPLITS if split in found]
    labelled = [split for split in there if not _unlabelled(found[split], label)]
    name = next(iter(labelled), "")
    if name and share:
        raise UserError(
            f"run-config key 'test-share' is {share:g}, but the data in {root} have a split "
            f"'{name}' with test images; set it to 0"
        )
    if not (name or share):
        bare = f" (no image of '{there[0]}' has a label)" if there else ""
        raise UserError(
            f"the data in {root} have the splits {sorted(found)}{bare}, not train and "
            f"test{HOLD_OUT}"
        )
    return found.get(name)


def _unlabelled(rows: Any, label: str) -> bool:
    """Return whether no row of a split has a label, as its column says: -1 or nothing."""
    if label not in rows.features:
        return True
    return len(rows) > 0 and all(each in (-1, None) for each in rows[label])


def _columns(root: Path, features: Mapping[str, Any]) -> tuple[str, str]:
    """Return the names of the image and the label column."""
    kinds = {name: type(feature).__name__ for name, feature in features.items()}
    images = [name for name, kind in kinds.items() if kind == "Image"]
    labels = [name for name in LABELS if name in kinds]
    labels += [name for name, kind in kinds.items() if kind == "ClassLabel"]
    if not images or not labels:
        raise UserError(f"the data in {root} have the columns {kinds}, not an image and a label")
    return images[0], labels[0]


def _labels(
    root: Path, split: str, rows: Any, column: str, names: Sequence[str] | None
) -> np.ndarray:
    """Return a column as int64 [n]; raises UserError unless all values are valid labels."""
    values = list(rows[column])  # read once: each access converts the whole column
    for number, label in enumerate(values):
        if not isinstance(label, int) or label < 0 or (names and label >= len(names)):
            limit = f" to {len(names) - 1}" if names else " on"
            raise UserError(
                f"row {number} of {split} in {root} has {reprlib.repr(label)} in the column "
                f"'{column}', which must have labels, whole numbers from 0{limit}"
            )
    return np.array(values, dtype=np.int64)


@dataclass(frozen=True)
class _Photos:
    """The `chosen` images of one split: a column of its rows."""

    root: Path
    split: str
    rows: Any
    column: str
    chosen: Sequence[int] | np.ndarray

    def names(self) -> list[str]:
        """Return the names of all chosen images."""
        return [self.name(position) for position in range(len(self.chosen))]

    def name(self, position: int) -> str:
        """Return the name of the image at a position in `chosen`, for errors."""
        return f"image {self.chosen[position]} of {self.split} in {self.root}"

    def read(self, position: int, side: int = 0) -> np.ndarray:
        """Decode an image, uint8 [H, W, 1 or 3]; with `side` its central square, scaled to it."""
        name = self.name(position)
        try:
            if (photo := self.rows[int(self.chosen[position])][self.column]) is None:
                raise UserError(
                    f"{name} is missing: its row has none in the column '{self.column}'"
                )
            return central_square(name, photo, side) if side else to_bytes(name, photo)
        except UserError:
            raise
        except Exception as error:  # Pillow raises many types of exceptions
            raise UserError(f"cannot read {name}: {error}") from error


def _pixels(photos: Mapping[str, _Photos], side: int) -> Arrays:
    """Return the images of each split; raises UserError if some cannot be used."""
    hint = "" if side else SCALE_THEM
    first = photos["train"]
    every = side or square_side(first.name(0), first.read(0))
    return unify_channels(
        {
            split: stack_photos(each.names(), partial(each.read, side=side), every, hint)
            for split, each in photos.items()
        }
    )
