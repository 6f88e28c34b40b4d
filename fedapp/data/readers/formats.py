"""The published file formats of public data sets: CIFAR's pickles and MNIST's IDX files.

torchvision downloads the files, but reading them needs only a few lines. These readers save every
process the import of torchvision, name a damaged file, and never run code in a pickle.
"""

import gzip
import io
import pickle
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fedapp.core.arrays import Arrays
from fedapp.core.errors import UserError

_IDX_KINDS = ("images-idx3", "labels-idx1")


class FileFormat(Protocol):
    """The files of a public data set on disk."""

    @property
    def folder(self) -> str:
        """The folder below data-dir that torchvision, or the data set's archive, uses."""

    def find(self, folder: Path) -> dict[str, Path]:
        """Find the data set's files and folders by name; {} if one is absent."""

    def read(self, paths: dict[str, Path]) -> Arrays:
        """Read class names, images and labels of both splits from the paths of `find`.

        Raises:
            UserError: a file is damaged or has other content.
        """


@dataclass(frozen=True)
class CifarFormat:
    """Pickled dictionaries with "data", uint8 [n, 3072], and a list of labels."""

    folder: str
    train: tuple[str, ...]
    test: str
    meta: str
    label_key: str
    names_key: str

    def find(self, folder: Path) -> dict[str, Path]:
        """Find the batches and the file with the class names; each may be compressed (.gz)."""
        return find_files(folder, (*self.train, self.test, self.meta))

    def read(self, paths: dict[str, Path]) -> Arrays:
        """Read the batches into images [n, 32, 32, 3], and the class names."""
        batches = {name: self._read_batch(paths[name]) for name in (*self.train, self.test)}
        classes = _read_pickle(paths[self.meta]).get(self.names_key)
        if not isinstance(classes, list):
            raise damaged(paths[self.meta], f"it has no list '{self.names_key}'")
        images, labels = zip(*(batches[name] for name in self.train), strict=True)
        return {
            "classes": np.array(classes, dtype=np.str_),
            "train_images": np.concatenate(images),
            "train_labels": np.concatenate(labels),
            "test_images": batches[self.test][0],
            "test_labels": batches[self.test][1],
        }

    def _read_batch(self, path: Path) -> tuple[np.ndarray, np.ndarray]:
        content = _read_pickle(path)
        data, labels = content.get("data"), content.get(self.label_key)
        if not isinstance(data, np.ndarray) or not isinstance(labels, list):
            raise damaged(path, f"it has no array 'data' and list '{self.label_key}'")
        if data.dtype != np.uint8 or data.shape != (len(labels), 3072):
            raise damaged(path, f"'data' must be uint8 [{len(labels)}, 3072]")
        images = data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        try:
            return np.ascontiguousarray(images), np.array(labels, dtype=np.int64)
        except (TypeError, ValueError, OverflowError):
            raise damaged(path, f"'{self.label_key}' must be whole numbers") from None


# The files of these sets, in these folders, have the same names; their first ten labels differ.
_FIRST_LABELS = {"5041921314": "MNIST/raw", "9003027255": "FashionMNIST/raw"}


@dataclass(frozen=True)
class IdxFormat:
    """Big-endian arrays after a magic number and their shape (LeCun et al., 1998)."""

    folder: str

    def find(self, folder: Path) -> dict[str, Path]:
        """Find images and labels of both splits, under the names of MNIST, plain or as .gz."""
        kinds = [f"{split}-{kind}" for split in ("train", "t10k") for kind in _IDX_KINDS]
        return find_files(folder, [f"{kind}-ubyte" for kind in kinds])

    def read(self, paths: dict[str, Path]) -> Arrays:
        """Read the four files; images are [n, H, W, 1]."""
        arrays: Arrays = {}
        for split, prefix in (("train", "train"), ("test", "t10k")):
            labels_path = paths[f"{prefix}-labels-idx1-ubyte"]
            images = _read_idx(paths[f"{prefix}-images-idx3-ubyte"], 3)
            labels = _read_idx(labels_path, 1)
            if len(images) != len(labels):
                raise damaged(labels_path, f"{len(labels)} labels for {len(images)} images")
            arrays[f"{split}_images"] = images[..., None]
            arrays[f"{split}_labels"] = labels.astype(np.int64)
        first = "".join(map(str, arrays["train_labels"][:10]))
        if _FIRST_LABELS.get(first, self.folder) != self.folder:
            path = paths["train-labels-idx1-ubyte"]
            raise damaged(path, f"these are the files of {_FIRST_LABELS[first]}, named alike")
        return arrays


def locate(root: Path, file_format: FileFormat) -> dict[str, Path]:
    """Find a data set in its usual folder in `root`, or in `root` itself; {} if in neither."""
    return file_format.find(root / file_format.folder) or file_format.find(root)


def find_files(folder: Path, names: Sequence[str]) -> dict[str, Path]:
    """Find files by name, each plain or compressed (.gz); {} unless all exist."""
    paths: dict[str, Path] = {}
    for name in names:
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
                paths.setdefault(name, path)
    return paths if len(paths) == len(names) else {}


def text_lines(path: Path) -> list[str]:
    """Return the non-blank lines of a text file; raises UserError if there are none."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise damaged(path, error) from error
    if not (lines := [line for line in lines if line.strip()]):
        raise damaged(path, "it is empty")
    return lines


def damaged(path: Path, what: object) -> UserError:
    """Return the error for a file with unexpected content."""
    return UserError(f"data file {path} is damaged or not what its name says: {what}")


def _read_bytes(path: Path) -> bytes:
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if path.suffix == ".gz" else content
    except (OSError, EOFError, zlib.error) as error:
        raise damaged(path, error) from error


class _ArrayUnpickler(pickle.Unpickler):
    """Unpickles only dictionaries, lists and numpy arrays, so that no code can run."""

    _ALLOWED = frozenset(
        {
            ("numpy._core.multiarray", "_reconstruct"),
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
            ("_codecs", "encode"),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        """Resolve the few names that pickled arrays need."""
        module = module.replace("numpy.core", "numpy._core")  # files written by numpy 1
        if (module, name) not in self._ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return super().find_class(module, name)


def _read_pickle(path: Path) -> dict[str, Any]:
    content = _read_bytes(path)
    try:
        value = _ArrayUnpickler(io.BytesIO(content), encoding="latin1").load()
    except Exception as error:  # a damaged pickle can raise any type
        raise damaged(path, error) from error
    if not isinstance(value, dict):
        raise damaged(path, "it is not a dictionary")
    return value


def _read_idx(path: Path, dimensions: int) -> np.ndarray:
    """Read an IDX file of unsigned bytes with the given number of dimensions."""
    content = _read_bytes(path)
    start = 4 + 4 * dimensions
    if content[:4] != bytes([0, 0, 8, dimensions]) or len(content) < start:
        raise damaged(path, f"it is no IDX file of bytes in {dimensions} dimensions")
    shape = tuple(int(size) for size in np.frombuffer(content[4:start], dtype=">u4"))
    if len(content) - start != int(np.prod(shape, dtype=object)):
        raise damaged(path, f"{len(content) - start} bytes do not fill the shape {list(shape)}")
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape).copy()
