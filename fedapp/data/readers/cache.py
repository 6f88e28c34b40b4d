"""Decoded data sets, kept as plain arrays in the user's cache folder.

Decoding tens of thousands of image files takes the better part of a minute, and a run has many
processes. The first one decodes, under a lock, and writes .npy files; the others, and later runs,
map them into memory: in milliseconds, sharing the pages, without importing an image library.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import numpy as np

from fedapp.core.arrays import Arrays
from fedapp.core.locks import lock_file
from fedapp.core.paths import cache_folder

# Part of every key: raise it when what is stored, or how it is computed, changes.
_VERSION = 1
_LIST = "arrays.json"  # a file in every entry: the names of its arrays


def file_version(name: str, status: os.stat_result) -> str:
    """Return a text that changes when the file called `name` is changed: its size and time."""
    return f"{name}/{status.st_size}/{status.st_mtime_ns}"


def cached_arrays(
    name: str, source: str, versions: Iterable[str], decode: Callable[[], Arrays]
) -> Arrays:
    """Return `decode()`, from the cache when the same content was decoded before.

    Args:
        name: of the data set.
        source: where it comes from, such as an absolute path.
        versions: what its content depends on, such as the `file_version` of each file.
        decode: makes the arrays, which must not hold Python objects.

    Returns:
        The arrays, mapped copy-on-write (changing them changes no file), or as decoded where the
        cache folder cannot be written.
    """
    entry = f"{name}-{_digest([source])}"
    folder = cache_folder() / f"{entry}-{_digest(versions)}"
    if (found := _read(folder)) is not None:
        return found
    with lock_file(folder.parent / f"{entry}.lock"):
        if (found := _read(folder)) is not None:
            return found
        arrays = decode()
        try:
            _write(folder, arrays)
            _remove_others(folder, f"{entry}-")
        except OSError:
            return arrays
    return _read(folder) or arrays


def _digest(texts: Iterable[str]) -> str:
    hasher = hashlib.sha256(str(_VERSION).encode())
    for text in texts:
        hasher.update(b"\0" + text.encode("utf-8", "surrogateescape"))
    return hasher.hexdigest()[:16]


def _read(folder: Path) -> Arrays | None:
    """Map the arrays of a cache entry; None when there is none, or not all of it."""
    try:
        names = json.loads((folder / _LIST).read_text())
        return {name: np.asarray(np.load(folder / f"{name}.npy", mmap_mode="c")) for name in names}
    except (OSError, ValueError):
        return None


def _write(folder: Path, arrays: Arrays) -> None:
    """Write an entry so that it appears whole or not at all."""
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        temporary.mkdir(parents=True)
        for name, array in arrays.items():
            np.save(temporary / f"{name}.npy", array, allow_pickle=False)
        (temporary / _LIST).write_text(json.dumps(list(arrays)))
        shutil.rmtree(folder, ignore_errors=True)  # a damaged one; a sound one was returned
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _remove_others(folder: Path, prefix: str) -> None:
    """Drop entries of earlier contents of the same files; they would never be read again.

    Each is renamed first, so that none is left with a part of its arrays. Hidden folders are what
    processes that were killed have left.
    """
    for other in folder.parent.glob(f"{prefix}*"):
        if other != folder:
            with suppress(OSError):  # it is not ours to remove
                other.rename(other.with_name(f".{other.name}.{os.getpid()}"))
    for hidden in folder.parent.glob(f".{prefix}*"):
        shutil.rmtree(hidden, ignore_errors=True)
