"""Data sets of the Hugging Face hub, by name, as flwr-datasets takes them: "hub:OWNER/NAME".

The copy of the hub's Parquet files in data-dir (or in the cache folder) is decoded once. Every set
has a folder OWNER--NAME of its own there. Only decoding and downloading need the libraries of the
extra "hub".
"""

import os
import reprlib
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import numpy as np

from fedapp.core.arrays import Arrays
from fedapp.core.errors import UserError
from fedapp.core.locks import lock_file
from fedapp.core.paths import absolute, cache_folder
from fedapp.data.readers.cache import cached_arrays, file_version
from fedapp.data.readers.images import (
    SCALE_THEM,
    channel_statistics,
    scaled_source,
    square_side,
    stack_photos,
    unify_channels,
)
from fedapp.data.readers.pixels import central_square, to_bytes
from fedapp.data.readers.sources import Origin

PREFIX = "hub:"
FILES = ["*.parquet", "README.md"]  # the README names the columns of images and labels
CONVERTED = "refs/convert/parquet"  # the hub's revision with Parquet copies of other formats
TEST_SPLITS = ("test", "validation", "valid", "val")
LABELS = ("label", "fine_label", "labels")
CONNECT_SECONDS = 5.0
UNFINISHED = ".download-unfinished"  # marks an incomplete copy
MARK = ".hub-name"  # says which set was downloaded into a folder


def read_hub(origin: Origin) -> Arrays:
    """Return classes, mean, std and the images and labels of both splits, cached if possible.

    Raises:
        UserError: a wrong name, an absent copy or library, a failed download, or data that are not
            images with labels, of one size unless they are to be scaled.
    """
    name, _, subset = origin.name.removeprefix(PREFIX).partition(":")
    if name.count("/") != 1 or not all(name.split("/")):
        raise UserError(f"dataset '{origin.name}' must be hub:OWNER/NAME or hub:OWNER/NAME:SUBSET")
    root = _folder_of(name, origin.data_dir)
    if not _is_whole(root):
        if not origin.download:
            part = ", but for a part" if (root / UNFINISHED).exists() else ""
            raise UserError(
                f"dataset '{origin.name}' is not in {root}{part}; set data-dir to a copy of its "
                "Parquet files, or set download=true"
            )
        _download(name, root)
    files = sorted(path for pattern in FILES for path in root.rglob(pattern))
    versions = [subset, *(file_version(str(path), path.stat()) for path in files)]
    source, side = scaled_source(f"{root}:{subset}", origin.image_size), origin.image_size
    return cached_arrays("hub", source, versions, lambda: _decode(root, subset, side))


def _folder_of(name: str, data_dir: str) -> Path:
    """Return the folder for a data set's files: OWNER--NAME in data-dir, or data-dir itself.

    Raises:
        UserError: another data set was downloaded into that folder.
    """
    parent = absolute(data_dir, "data-dir") if data_dir else cache_folder() / "hub"
    folder = parent / name.replace("/", "--")
    missing = data_dir and not _is_whole(folder)
    if missing and (parent.name == folder.name or _marked(parent) or _is_one_copy(parent)):
        folder = parent
    if (other := _marked(folder)) not in ("", name):
        raise UserError(
            f"{folder} holds '{PREFIX}{other}', as its file {MARK} says, not '{PREFIX}{name}'; set "
            "data-dir to a folder without that set, or to a copy of the right Parquet files"
        )
    return folder


def _marked(folder: Path) -> str:
    """Return the name of the data set that was downloaded into a folder; "" if none was."""
    mark = folder / MARK
    return mark.read_text(encoding="utf-8", errors="replace").strip() if mark.is_file() else ""


def _is_one_copy(folder: Path) -> bool:
    """Return whether a folder has a copy of one data set, which a user placed there.

    With other sets in folders of their own inside, it is not: they would be read with it.
    """
    return _is_whole(folder) and not any(
        (path / MARK).exists() or ("--" in path.name and path.is_dir()) for path in folder.iterdir()
    )


def _library(name: str) -> ModuleType:
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError as error:
        raise UserError(
            f"data sets of the hub need the package '{name}' ({error}); install it with "
            "pip install -e '.[hub]'"
        ) from error


def _is_whole(root: Path) -> bool:
    """Return whether Parquet files exist and no interrupted download left them."""
    return any(root.rglob("*.parquet")) and not (root / UNFINISHED).exists()


def _download(name: str, root: Path) -> None:
    """Fetch the Parquet files of a data set, or the hub's own conversion to Parquet.

    Complete files of an interrupted download are not fetched again.
    """
    hub = _library("huggingface_hub")
    _check_reachable(name)
    with lock_file(root.parent / f".{root.name}.lock"):
        if _is_whole(root):
            return  # another process has downloaded it
        try:
            root.mkdir(parents=True, exist_ok=True)
            (root / UNFINISHED).touch()
            (root / MARK).write_text(name, encoding="utf-8")
            for revision in (None, CONVERTED):
                source = {"repo_type": "dataset", "revision": revision}
                listed = hub.list_repo_files(name, **source)
                hub.snapshot_download(name, **source, local_dir=root, allow_patterns=FILES)
                if any(file.endswith(".parquet") for file in listed):
                    break
            (root / UNFINISHED).unlink()
        except Exception as error:  # network, authorisation and disk errors of many types
            first = str(error).strip().partition("\n")[0]
            raise UserError(f"could not download '{PREFIX}{name}' to {root}: {first}") from error
    if not any(root.rglob("*.parquet")):
        raise UserError(f"'{PREFIX}{name}' has no Parquet files on the hub")


def _check_reachable(name: str) -> None:
    """Raise UserError within seconds where the hub does not answer; its library retries for long.

    Behind a proxy this process cannot tell: the library finds out.
    """
    host = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
    address = (host.hostname or "", host.port or (80 if host.scheme == "http" else 443))
    if host.scheme in getproxies():
        return
    try:
        socket.create_connection(address, timeout=CONNECT_SECONDS).close()
    except OSError as error:
        raise UserError(
            f"could not download '{PREFIX}{name}': {address[0]} cannot be reached ({error}); check "
            "the network, or set data-dir to a copy of its Parquet files"
        ) from None


def _decode(root: Path, subset: str, side: int) -> Arrays:
    library = _library("datasets")
    # The library's own copy, in Arrow, is needed only until the images are decoded.
    cache_folder().mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=cache_folder(), prefix=".hub-") as scratch:
        try:
            splits = library.load_dataset(str(root), subset or None, cache_dir=scratch)
        except Exception as error:  # damaged files, unknown subsets: dozens of types
            first = str(error).strip().partition("\n")[0]
            raise UserError(f"cannot read the Parquet files in {root}: {first}") from error
        return _arrays(root, splits, side)


def _arrays(root: Path, splits: Mapping[str, Any], side: int) -> Arrays:
    train = splits.get("train")
    test = next((splits[name] for name in TEST_SPLITS if name in splits), None)
    if train is None or test is None:
        raise UserError(f"the data in {root} have the splits {sorted(splits)}, not train and test")
    image, label = _columns(root, train.features)
    splits = {"train": train, "test": test}
    for split, rows in splits.items():
        if not len(rows):
            raise UserError(f"the split {split} in {root} is empty")
    names = getattr(train.features[label], "names", None)
    labels = {s: _labels(root, s, rows, label, names) for s, rows in splits.items()}
    pixels = _pixels({name: _Photos(root, name, splits[name], image) for name in splits}, side)
    highest = max(int(values.max()) for values in labels.values())
    arrays: Arrays = {"classes": np.array(names or list(map(str, range(highest + 1))))}
    for split in splits:
        arrays[f"{split}_images"], arrays[f"{split}_labels"] = pixels[split], labels[split]
    arrays["mean"], arrays["std"] = channel_statistics(pixels["train"])
    return arrays


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
    """The images of one split: a column of its rows."""

    root: Path
    split: str
    rows: Any
    column: str

    def names(self) -> list[str]:
        """Return the names of all images."""
        return [self.name(row) for row in range(len(self.rows))]

    def name(self, row: int) -> str:
        """Return the name of an image for errors."""
        return f"image {row} of {self.split} in {self.root}"

    def read(self, row: int, side: int = 0) -> np.ndarray:
        """Decode an image, uint8 [H, W, 1 or 3]; with `side` its central square, scaled to it."""
        name = self.name(row)
        try:
            if (photo := self.rows[row][self.column]) is None:
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
