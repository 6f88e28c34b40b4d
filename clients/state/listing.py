"""List, export and remove the client states in a folder.

Personal models of a hundred clients take gigabytes and remain after their run, so a user must be
able to list and remove them. The user names the folder, so `clean` removes only files that a
`ClientState` makes, never a whole tree.
"""

import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from clients.state.store import (
    CURRENT,
    LOCK,
    PREVIOUS,
    TEMPORARY,
    StateError,
    client_folder,
    create,
    exclusive,
    file_lock,
    newest,
)

_PATIENCE = 1.0  # seconds to wait for another process that removes the same files
_STATES = (CURRENT, PREVIOUS, TEMPORARY)
_FILES = (*_STATES, LOCK)  # the lock is removed last, because it protects the removal


class UnknownRun(StateError):  # noqa: N818 - a StateError by its base
    """No client of the run has a state in the folder."""


@dataclass(frozen=True)
class RunState:
    """A summary of the states of one run's clients."""

    run_key: str
    clients: int  # number of clients with a state
    bytes: int  # of all their files
    last_round: int | None  # None: no state is readable
    modified: float  # seconds since the epoch
    damaged: int  # clients whose newest file cannot be read


def list_states(root: Path) -> list[RunState]:
    """List the runs that have states below `root`, the most recently changed first.

    Runs of other users, whose folders cannot be listed, are left out.
    """
    rows = []
    for run in _folders(root):
        with suppress(StateError):
            rows += _state_of(run)
    return sorted(rows, key=lambda row: (-row.modified, row.run_key))


def _state_of(run: Path) -> list[RunState]:
    """Return the summary of a run's states; empty if it has none."""
    clients = _client_folders(run)
    return [_examine(run, clients)] if clients else []


def export_state(root: Path, run_key: str, client: int, target: Path) -> int:
    """Copy a client's newest state to a new safetensors file, and return its size in bytes.

    Raises:
        UnknownRun: there is no such run.
        StateError: there is no such state, it is damaged, or `target` exists or cannot be written.
    """
    newest_file = newest(client_folder(root, run_key, client))
    if newest_file is None and not (root / run_key).is_dir():
        raise _unknown(root, run_key)
    if newest_file is None:
        raise StateError(f"client {client} of run '{run_key}' has no state in {root}")
    try:
        with newest_file[0].open("rb") as source, os.fdopen(create(target), "wb") as copy:
            shutil.copyfileobj(source, copy)
            return copy.tell()
    except FileExistsError:
        raise StateError(f"{target} exists already; name a new file") from None
    except OSError as error:
        raise StateError(f"{newest_file[0]} cannot be copied to {target}: {error}") from error


def clean(
    root: Path, run_key: str | None = None, keep: int = 0, *, dry_run: bool = False
) -> list[RunState]:
    """Remove the states of one run, or of all but the `keep` most recently changed runs.

    Returns the removed rows; with `dry_run` it only returns them. Several processes may remove the
    same states at once.

    Raises:
        UnknownRun: there is no such run.
        StateError: both a run key and `keep` are given, a client is training, or a file cannot be
            removed.
    """
    if run_key is None:
        rows = list_states(root)[max(keep, 0) :]
    elif keep:
        raise StateError(f"name the run '{run_key}' or how many runs to keep, not both")
    else:
        named = [run for run in _folders(root) if run.name == run_key]  # other runs are not read
        rows = [row for run in named for row in _state_of(run)]
        if not rows:
            raise _unknown(root, run_key)
    for row in [] if dry_run else rows:
        _remove(root / row.run_key)
    return rows


def _unknown(root: Path, run_key: str) -> UnknownRun:
    known = ", ".join(row.run_key for row in list_states(root)) or "none"
    return UnknownRun(f"there is no run '{run_key}' in {root}; there are: {known}")


def _folders(folder: Path) -> list[Path]:
    """List the folders in a folder, without links, because these may lead anywhere."""
    try:
        with os.scandir(folder) as entries:
            return sorted(Path(e.path) for e in entries if e.is_dir(follow_symlinks=False))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StateError(f"{folder} cannot be listed: {error}") from error


def _client_folders(run: Path) -> list[Path]:
    numbered = [path for path in _folders(run) if path.name.isascii() and path.name.isdigit()]
    try:
        return [path for path in numbered if any((path / name).is_file() for name in _FILES)]
    except PermissionError as error:
        raise StateError(f"{run} cannot be listed: {error}") from error


def _examine(run: Path, clients: list[Path]) -> RunState:
    rounds, damaged = [], 0
    for folder in clients:
        try:
            newest_file = newest(folder)
        except StateError:
            damaged += 1
        else:
            rounds += [newest_file[1].last_round] if newest_file else []
    files = []
    for path in (folder / name for folder in clients for name in _FILES):
        with suppress(FileNotFoundError):  # a training client renames its files
            files.append(path.stat())
    return RunState(
        run_key=run.name,
        clients=len(rounds) + damaged,
        bytes=sum(status.st_size for status in files),
        last_round=max(rounds, default=None),
        modified=max((status.st_mtime for status in files), default=0.0),
        damaged=damaged,
    )


def _remove(run: Path) -> None:
    """Remove a run's files and the folders that this leaves empty.

    Where one client's cannot be removed, because it is training, those of the others still are.
    """
    failed: StateError | None = None
    for folder in _client_folders(run):
        try:
            _remove_files(folder, f"client {folder.name} of run '{run.name}'")
        except StateError as error:
            if any((folder / file).is_file() for file in _STATES):
                failed = failed or error  # otherwise another process has removed them
    if failed:
        raise failed
    with suppress(OSError):  # the folder has other content
        run.rmdir()


def _remove_files(folder: Path, name: str) -> None:
    lock = file_lock(folder)
    lock.timeout = _PATIENCE
    with exclusive(lock, name):
        try:
            for file in _FILES:
                (folder / file).unlink(missing_ok=True)
        except OSError as error:
            raise StateError(f"{folder} cannot be cleaned: {error}") from error
    with suppress(OSError):  # the folder has other content
        folder.rmdir()
