"""The folders of runs: how they are named, which are free, and one writer for each.

Two processes that append to one metrics.jsonl spoil both runs, and a name that is taken must never
cost what lies there. So a folder is locked for as long as a run lasts, and is free only
while it has nothing in it but what a run writes before its first round.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from fedapp.core.errors import UserError
from fedapp.core.locks import LockHeld, lock_file
from fedapp.core.paths import expanded, folder_name, is_folder_name

LOCK, CHECKPOINTS = ".lock", "checkpoints"
_EMPTY_AT_FIRST = "metrics.jsonl"
_BEFORE_ROUND_1 = (LOCK, "config.toml", "partition.json", "state.json", "tensorboard", "wandb")


def existing(path: str | Path) -> Path:
    """Return the absolute path of a run directory.

    Raises:
        UserError: `path` is missing, not a folder, or holds no config.toml.
    """
    folder = expanded(path, "the run directory").resolve()
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; give the path of a run directory.")
    if not (folder / "config.toml").is_file():
        raise UserError(f"{folder} is not a run directory: it holds no config.toml.")
    return folder


def is_free(path: Path) -> bool:
    """Return whether a folder is empty, or holds a run that has not done anything yet."""
    names = {entry.name for entry in path.iterdir()}
    begun = (path / CHECKPOINTS).is_dir()  # so config.toml is a run's, not something else's
    return names <= {LOCK} or (begun and all(_is_nothing(path / name) for name in names))


def _is_nothing(entry: Path) -> bool:
    if entry.name == CHECKPOINTS:
        return not any(entry.iterdir())
    return entry.name in _BEFORE_ROUND_1 or (
        entry.name == _EMPTY_AT_FIRST and entry.stat().st_size == 0
    )


def named(parent: Path, run_name: str, resume: bool) -> Path:
    """Make the folder the user named, or take it if it is free, or with `resume` an earlier run's.

    Raises:
        UserError: the name is no folder name, or the folder holds something that must stay.
        OSError: the folder cannot be made.
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
    """Raise UserError for a folder in which a run has begun, or something else lies."""
    if path.is_dir() and not is_free(path):
        raise UserError(
            f"run directory {path} already exists and is not empty; "
            "choose another run-name, or set resume='auto' to go on with that run."
        )


def unnamed(parent: Path, config: Mapping[str, object]) -> Path:
    """Make a folder named after method, dataset and time, numbered when the second is shared.

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
def lock_run(path: Path) -> Iterator[None]:
    """Make a run's folder if need be, and keep other processes from running in it.

    Where no lock can be had, on a file system without any, the run goes on without one. A folder
    of something else than a run gets none.

    Raises:
        UserError: at once, when another process holds it.
    """
    is_run = False
    with suppress(OSError):  # where nothing at all can be written, writing the first file says so
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
