"""The folders of runs: their names, whether they are free, and their locks.

Two processes that append to one metrics.jsonl damage both runs, and a new run must never overwrite
an existing folder's content. So a folder is locked while a run lasts. It is free only if it
contains nothing except the files that a run writes before its first round.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from fedapp.core.errors import UserError
from fedapp.core.files import is_temporary, parse_object
from fedapp.core.locks import LockHeld, lock_file
from fedapp.core.paths import expanded, folder_name, is_folder_name
from fedapp.results import checkpoint

log = logging.getLogger(__name__)
LOCK, CHECKPOINTS = ".lock", "checkpoints"
_EMPTY_AT_FIRST, _SUMMARY = "metrics.jsonl", "summary.json"
_BEFORE_ROUND_1 = (LOCK, "config.toml", "partition.json", "state.json", "tensorboard", "wandb")


def existing(path: str | Path) -> Path:
    """Return the absolute path of a run directory.

    Raises:
        UserError: `path` is missing, not a folder, or has no config.toml.
    """
    folder = expanded(path, "the run directory").resolve()
    if not folder.is_dir():
        usual = Path("runs") / path
        hint = f"; did you mean {usual}?" if (usual / "config.toml").is_file() else "."
        raise UserError(f"{folder} is not a folder; give the path of a run directory{hint}")
    if not (folder / "config.toml").is_file():
        hint = f"; to name each run in it, write {folder}/*/" if runs_in(folder) else ""
        raise UserError(f"{folder} is not a run directory: it has no config.toml{hint}")
    return folder


def named_runs(path: Path) -> list[Path]:
    """Return the runs that a user names by a path: a run directory, or a folder of runs."""
    is_run = (path / "config.toml").is_file()
    return [path] if is_run else runs_in(path) or [path]


def runs_in(folder: Path) -> list[Path]:
    """Return the run directories in a folder, such as a sweep's, by name."""
    return sorted(file.parent for file in folder.glob("*/config.toml"))


@contextmanager
def readable(*runs: Path) -> Iterator[None]:
    """Turn errors about what a run's files contain into UserError: they were changed by hand."""
    try:
        yield
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        log.debug("the files of a run cannot be used", exc_info=True)
        raise UserError(
            f"a file of {' or '.join(map(str, runs))} has not the form that fedapp gives it "
            f"({type(error).__name__}: {error}); restore it, or leave this run out"
        ) from None


def is_free(path: Path) -> bool:
    """Return whether a folder is empty, or is that of a run before its first round."""
    names = {entry.name for entry in path.iterdir() if not is_temporary(entry)}
    has_run = (path / CHECKPOINTS).is_dir()  # then config.toml belongs to a run
    return names <= {LOCK} or (has_run and all(_is_initial(path / name) for name in names))


def _is_initial(entry: Path) -> bool:
    if entry.name == CHECKPOINTS:
        return all(map(is_temporary, entry.iterdir()))
    if entry.name == _SUMMARY:  # of a run that the nodes refused
        return (parse_object(entry.read_bytes()) or {}).get("rounds") == 0
    return entry.name in _BEFORE_ROUND_1 or (
        entry.name == _EMPTY_AT_FIRST and entry.stat().st_size == 0
    )


def named(parent: Path, run_name: str, resume: bool) -> Path:
    """Create the folder `run_name`, or reuse it if it is free or, with `resume`, an earlier run's.

    Raises:
        UserError: the name is not a folder name, or the folder has other content.
        OSError: the folder cannot be created.
    """
    if not is_folder_name(run_name):
        raise UserError(f"run-name '{run_name}' must be a plain folder name, without slashes.")
    path = parent / run_name
    path.mkdir(exist_ok=True)
    if resume and not is_free(path):
        return existing(path)
    check_free(path)
    return path


def check_free(path: Path) -> None:
    """Raise UserError for a folder with a run that has begun, or with other content."""
    if path.is_dir() and not is_free(path):
        raise UserError(
            f"run directory {path} already exists and is not empty; choose another run-name"
            f"{_other_way(path)}."
        )


def _other_way(path: Path) -> str:
    """Return what else than another name helps where a folder has a run that has begun."""
    if not (path / "config.toml").is_file():
        return ""
    if checkpoint.newest(path):
        return ", or set resume='auto' to continue that run"
    summary = path / _SUMMARY
    ended = (parse_object(summary.read_bytes()) or {}) if summary.is_file() else {}
    if ended.get("status") == "completed":
        return ": that run is completed, and has no checkpoints to continue from"
    return ", or set resume='auto' to train that run from the start: it has no checkpoints"


def unnamed(parent: Path, config: Mapping[str, object]) -> Path:
    """Create a folder named after method, dataset and time, with a number if that name exists.

    Raises:
        OSError: the folder cannot be made.
    """
    words = [folder_name(str(config[key])) for key in ("method", "dataset") if config.get(key)]
    stem = "-".join([*words, time.strftime("%Y%m%d-%H%M%S")])
    attempt = 1
    while True:
        path = parent / (stem if attempt == 1 else f"{stem}-{attempt}")
        try:
            path.mkdir()
        except FileExistsError:
            attempt += 1
        else:
            return path


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise a UserError that names a run directory if the block cannot write one of its files."""
    try:
        yield
    except OSError as error:
        reason = ": ".join(str(part) for part in (error.strerror or error, error.filename) if part)
        raise UserError(
            f"run directory {path} cannot be written ({reason}); make room for it, get write "
            "access, or give another output-dir."
        ) from error


def check_writable(folder: Path, what: str) -> None:
    """Raise UserError if nothing can be written to a folder, or where it is to be made.

    It changes nothing, so that long work can begin with this check. `what` names the folder.
    """
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    if not nearest.is_dir():
        raise UserError(f"{what} {folder} cannot be written: {nearest} is not a folder.")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise UserError(f"{what} {folder} cannot be written: get write access to {nearest}.")


@contextmanager
def lock_run(path: Path) -> Iterator[None]:
    """Create a run's folder if needed, and lock it against other processes.

    On a file system without locks the run continues without a lock. A folder with other content
    than a run is not locked.

    Raises:
        UserError: at once, if another process holds the lock.
    """
    is_run = False
    with suppress(OSError):  # the first file that cannot be written raises the error
        path.mkdir(parents=True, exist_ok=True)
        is_run = (path / LOCK).exists() or is_free(path) or (path / "config.toml").is_file()
    with ExitStack() as stack:
        try:
            if is_run:
                stack.enter_context(lock_file(path / LOCK, wait=False))
        except LockHeld:
            raise UserError(
                f"another process is running in run directory {path}; wait for it, end it, or "
                "choose another run-name."
            ) from None
        yield


def is_in_use(path: Path) -> bool:
    """Return whether a process holds the lock of a run's folder; False where none is possible."""
    if not (path / LOCK).is_file():
        return False
    try:
        with lock_file(path / LOCK, wait=False):
            return False
    except LockHeld:
        return True
