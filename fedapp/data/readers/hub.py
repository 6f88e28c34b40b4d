"""Data sets of the Hugging Face hub, by name, as flwr-datasets takes them: "hub:OWNER/NAME".

The copy of the hub's Parquet files in data-dir (or in the cache folder) is decoded once. Every set
has a folder OWNER--NAME of its own there. Only decoding and downloading need the libraries of the
extra "hub".
"""

import os
import socket
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

from fedapp.core.arrays import Arrays
from fedapp.core.errors import UserError
from fedapp.core.locks import lock_file
from fedapp.core.paths import absolute, cache_folder
from fedapp.data.readers.cache import cached_arrays, file_version
from fedapp.data.readers.hub_rows import CONVERTED_MARK, decode, library
from fedapp.data.readers.sources import Origin

PREFIX = "hub:"
FILES = ["*.parquet", "README.md"]  # the README names the columns of images and labels
CONVERTED = "refs/convert/parquet"  # the hub's revision with Parquet copies of other formats
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
    source = origin.source(f"{root}:{subset}")
    return cached_arrays("hub", source, versions, lambda: decode(root, subset, origin))


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


def _is_whole(root: Path) -> bool:
    """Return whether Parquet files exist and no interrupted download left them."""
    return any(root.rglob("*.parquet")) and not (root / UNFINISHED).exists()


def _download(name: str, root: Path) -> None:
    """Fetch the Parquet files of a data set, or the hub's own conversion to Parquet.

    Complete files of an interrupted download are not fetched again.
    """
    hub = library("huggingface_hub")
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
                if revision == CONVERTED:
                    (root / CONVERTED_MARK).touch()
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
