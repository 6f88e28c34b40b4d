"""The cache of decoded data sets: plain arrays in the user's cache folder.

Decoding tens of thousands of image files takes most of a minute, and a run has many processes. The
first process decodes under a lock and writes .npy files. The other processes, and later runs, map
these into memory in milliseconds, share the pages and import no image library.
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

# Part of every key: increase it when the content of an entry, or its computation, changes.
_VERSION = 4
_LIST = "arrays.json"  # the file of an entry that lists its arrays


def file_version(name: str, status: os.stat_result) -> str:
    """Return a text that changes with the file `name`: its size and modification time."""
    return f"{name}/{status.st_size}/{status.st_mtime_ns}"


def cached_arrays(
    name: str, source: str, versions: Iterable[str], decode: Callable[[], Arrays]
) -> Arrays:
    """Return `decode()`, from the cache if the same content was decoded before.

    Args:
        name: of the data set.
        source: its origin, such as an absolute path.
        versions: texts that change with its content, such as the `file_version` of each file.
        decode: returns the arrays, which must not contain Python objects.

    Returns:
        The arrays, with "digest" where some are images: a hash of these. They are mapped
        copy-on-write (changing them changes no file), or as decoded if the cache folder cannot be
        written.
    """
    entry = f"{name}-{_digest([source])}"
    folder = cache_folder() / f"{entry}-{_digest([str(_VERSION), *versions])}"
    if (cached := _read(folder)) is not None:
        return cached
    with lock_file(folder.parent / f"{entry}.lock"):
        if (cached := _read(folder)) is not None:
            return cached
        arrays = with_digest(decode())
        try:
            _write(folder, arrays)
            _remove_others(folder, f"{entry}-")
        except OSError:
            return arrays
    return _read(folder) or arrays


def with_digest(arrays: Arrays) -> Arrays:
    """Add a hash of the images among the arrays, by which hosts compare their copies.

    Images that are decoded only when they are used have none.
    """
    names = sorted(name for name in arrays if name.endswith("_images"))
    if "digest" in arrays or not names:
        return arrays
    if not all(isinstance(arrays[name], np.ndarray) for name in names):
        return arrays
    hasher = hashlib.sha256()
    for name in names:
        hasher.update(f"{name} {arrays[name].shape}".encode())
        hasher.update(np.ascontiguousarray(arrays[name]).data)
    return {**arrays, "digest": np.array(hasher.hexdigest())}


def _digest(texts: Iterable[str]) -> str:
    hasher = hashlib.sha256()
    for text in texts:
        hasher.update(b"\0" + text.encode("utf-8", "surrogateescape"))
    return hasher.hexdigest()[:16]


def _read(folder: Path) -> Arrays | None:
    """Map the arrays of a cache entry; None if it does not exist or is incomplete."""
    try:
        names = json.loads((folder / _LIST).read_text())
        return {name: np.asarray(np.load(folder / f"{name}.npy", mmap_mode="c")) for name in names}
    except (OSError, ValueError, EOFError):  # EOFError: an empty file
        return None


def _write(folder: Path, arrays: Arrays) -> None:
    """Write an entry atomically."""
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        temporary.mkdir(parents=True)
        for name, array in arrays.items():
            np.save(temporary / f"{name}.npy", array, allow_pickle=False)
        (temporary / _LIST).write_text(json.dumps(list(arrays)))
        shutil.rmtree(folder, ignore_errors=True)  # a damaged entry
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _remove_others(folder: Path, prefix: str) -> None:
    """Remove entries of earlier contents of the same files, which are never read again.

    Each is renamed first, so that no incomplete entry remains. Hidden folders are left by killed
    processes.
    """
    for other in folder.parent.glob(f"{prefix}*"):
        if other != folder:
            with suppress(OSError):  # no permission
                other.rename(other.with_name(f".{other.name}.{os.getpid()}"))
    for hidden in folder.parent.glob(f".{prefix}*"):
        shutil.rmtree(hidden, ignore_errors=True)
