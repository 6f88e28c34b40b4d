"""The stored state of one client: control variates, its previous or personal model.

Any worker process may serve any client, a node may restart, and after a lost reply the server
requests a round again. Therefore the state is a file per run and client, which is replaced as a
whole and stamped with the round that wrote it; the previous version is kept. No message contains
it.

Layout: <root>/<run-key>/<client>/{personal.safetensors, personal.prev.safetensors, lock}
"""

import json
import operator
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as serialised

from clients.arrays import Arrays

_FORMAT = 1
CURRENT, PREVIOUS = "personal.safetensors", "personal.prev.safetensors"
TEMPORARY, LOCK = ".personal.safetensors.tmp", "lock"
PRIVATE_FILE, _PRIVATE_FOLDER = 0o600, 0o700
_MAX_NAME = 200  # bytes; file systems allow 255


class StateError(Exception):
    """The state of a client cannot be used as requested; the message states the reason."""


@dataclass(frozen=True)
class Stamp:
    """A state file's own description, in its metadata."""

    format: int
    version: int  # 1, 2, ...: increases with every write
    previous: int  # the version from which `last_round` started; 0: none
    last_round: int
    header: dict[str, str]


class ClientState:
    """The stored state of one client in one run."""

    def __init__(self, root: Path, run_key: str, client: int, header: Mapping[str, str]) -> None:
        """Describe the location of the state; this neither reads nor creates anything.

        Args:
            root: the folder of all runs' states.
            run_key: the name of the run; a plain folder name.
            client: from 0.
            header: the settings that the state belongs to (method, model, classes, seed, ...). A
                file with another header is refused.

        Raises:
            StateError: the run key or the client is not a safe folder name.
        """
        self._folder = client_folder(root, run_key, client)
        self._name = f"client {client} of run '{run_key}'"
        self._header = dict(header)
        self._lock = file_lock(self._folder)

    def load(self, server_round: int, accepted: int | None = None) -> Arrays | None:
        """Return the state as it was when round `server_round` began; None if there was none yet.

        After an interruption the same round gets the same state again, bit for bit. To read the
        result of round r, load r + 1.

        Args:
            server_round: the round to train.
            accepted: the client's last earlier round that counts, 0 for none: the state of a round
                whose result the server did not get is skipped. None: every earlier round counts.

        Raises:
            StateError: the client has trained a later round, the state has another header, its file
                is damaged, or the version for this round no longer exists.
        """
        newest_file = self._newest()
        if newest_file is None:
            return None
        path, stamp = newest_file
        self._refuse_later(stamp, server_round)
        last = server_round - 1 if accepted is None else accepted
        if stamp.last_round > last:
            if stamp.previous == 0:
                return None
            return self._arrays(self._folder / PREVIOUS, stamp.previous, last, accepted)
        return self._arrays(path, stamp.version, last, accepted)

    def save(
        self, arrays: Mapping[str, np.ndarray], server_round: int, accepted: int | None = None
    ) -> None:
        """Store the state after round `server_round`, and keep the version that it started from.

        Saving a round again replaces that round's state, and a round replaces one that does not
        count. If this method raises, or the process dies at any moment, `load` with the same
        arguments returns the same as before.

        Raises:
            StateError: as `load`; or another process holds the lock, an array has a type that
                safetensors does not support, or the file cannot be written (disk full,
                permissions).
        """
        with self.locked():
            newest_file = self._newest()
            version, previous, rewrite = 1, 0, False
            if newest_file is not None:
                stamp = newest_file[1]
                self._refuse_later(stamp, server_round)
                last = server_round - 1 if accepted is None else accepted
                rewrite = stamp.last_round > last
                version, previous = stamp.version + 1, stamp.previous if rewrite else stamp.version
            stamp = Stamp(_FORMAT, version, previous, server_round, self._header)
            self._write(self._serialised(arrays, stamp), keep_previous=rewrite)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Prevent other processes from training this client; may be nested.

        Raises:
            StateError: at once, when another process holds the lock.
        """
        try:
            make_private(self._folder)
        except OSError as error:
            raise StateError(f"{self._name} cannot have a folder for its state: {error}") from error
        with exclusive(self._lock, self._name):
            yield

    def _newest(self) -> tuple[Path, Stamp] | None:
        newest_file = newest(self._folder)
        if newest_file is not None:
            self._refuse_foreign(newest_file[1], newest_file[0])
        return newest_file

    def _arrays(self, path: Path, version: int, last: int, accepted: int | None) -> Arrays | None:
        """Return a version's arrays; None if it is older than `accepted`, whose state is lost."""
        with suppress(FileNotFoundError), _opened(path) as (stamp, file):
            self._refuse_foreign(stamp, path)
            if accepted is not None and stamp.last_round < accepted:
                return None
            if stamp.version == version and stamp.last_round <= last:
                return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        raise StateError(f"version {version} of the state of {self._name} is no longer in {path}")

    def _refuse_later(self, stamp: Stamp, server_round: int) -> None:
        if stamp.last_round > server_round:
            raise StateError(
                f"{self._name} has already trained round {stamp.last_round}, so it cannot train "
                f"round {server_round} from its state in {self._folder}"
            )

    def _refuse_foreign(self, stamp: Stamp, path: Path) -> None:
        stored = stamp.header
        for field in sorted(stored.keys() | self._header.keys()):
            if stored.get(field) != self._header.get(field):
                raise StateError(
                    f"the state of {self._name} in {path} has {field} {stored.get(field)!r}, "
                    f"but this run has {self._header.get(field)!r}"
                )

    def _serialised(self, arrays: Mapping[str, np.ndarray], stamp: Stamp) -> bytes:
        # One sorted entry, because the library's order of several entries differs between
        # processes.
        metadata = {"state": json.dumps(asdict(stamp), sort_keys=True)}
        # The library writes a strided array's memory unchanged, so that it must be in C order.
        dense = {name: np.asarray(array, order="C") for name, array in arrays.items()}
        try:
            return serialised(dense, metadata)
        except SafetensorError as error:
            raise StateError(f"the state of {self._name} cannot be stored: {error}") from error

    def _write(self, content: bytes, keep_previous: bool) -> None:
        temporary, current = self._folder / TEMPORARY, self._folder / CURRENT
        try:
            temporary.unlink(missing_ok=True)  # left by a process that was killed
            with os.fdopen(create(temporary), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            if not keep_previous:
                with suppress(FileNotFoundError):
                    os.replace(current, self._folder / PREVIOUS)
            os.replace(temporary, current)
            sync_folder(self._folder)
        except OSError as error:
            raise StateError(
                f"the state of {self._name} cannot be written to {self._folder}: {error}; "
                f"the state before it is kept"
            ) from error
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


def newest(folder: Path) -> tuple[Path, Stamp] | None:
    """Find a client's newest file, which is the previous one after a crash between two renames.

    Raises:
        StateError: the file is damaged.
    """
    for path in (folder / CURRENT, folder / PREVIOUS):
        with suppress(FileNotFoundError), _opened(path) as (stamp, _):
            return path, stamp
    return None


def client_folder(root: Path, run_key: str, client: int) -> Path:
    """Return the folder of a client's files; raises StateError if it could be outside `root`."""
    safe = run_key.isprintable() and not run_key.startswith(".") and not set(run_key) & set("/\\:")
    if not run_key or not safe or len(os.fsencode(run_key)) > _MAX_NAME:
        raise StateError(f"the run key {run_key!r} must be a plain folder name, without slashes")
    try:
        number = operator.index(client)  # refuses text, which could be a path
    except TypeError:
        number = -1
    if number < 0:
        raise StateError(f"the client {client!r} must be a number from 0")
    return root / run_key / str(number)


@contextmanager
def exclusive(lock: FileLock, name: str) -> Iterator[None]:
    """Hold a client's lock; raises StateError at once when another process holds it."""
    try:
        lock.acquire()
    except Timeout:
        raise StateError(
            f"{name} is in use, another process holds {lock.lock_file}; "
            f"each client must be served by one node only"
        ) from None
    except (OSError, NotImplementedError) as error:
        raise StateError(
            f"{name} cannot be locked by {lock.lock_file}: {error}; put state-dir on a file system "
            "with locks"
        ) from error
    try:
        yield
    finally:
        lock.release()


def file_lock(folder: Path) -> FileLock:
    """Return the lock, not yet acquired, of the client whose files are in `folder`.

    There is no soft lock where the file system has no locks: it stays held after a crash.
    """
    return FileLock(folder / LOCK, timeout=0, mode=PRIVATE_FILE, fallback_to_soft=False)


def create(path: Path) -> int:
    """Create a file that only its owner can access, and return its descriptor."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE)


def make_private(folder: Path) -> None:
    """Create a folder and its parents with access for the owner only; keep existing ones."""
    for each in [*reversed(folder.parents), folder]:
        each.mkdir(mode=_PRIVATE_FOLDER, exist_ok=True)


def sync_folder(folder: Path) -> None:
    """Make renames survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Stamp, Any]]:
    """Open a state file and yield its stamp and the safetensors file.

    Raises:
        FileNotFoundError: the file does not exist.
        StateError: the file is damaged, has another format or cannot be read.
    """
    try:
        with safe_open(path, "np") as file:
            text = (file.metadata() or {}).get("state")
            if text is None:
                raise ValueError("it has no stamp")
            stamp = Stamp(**json.loads(text))
            if stamp.format != _FORMAT:
                raise ValueError(f"its format is {stamp.format}, not {_FORMAT}")
            yield stamp, file
    except FileNotFoundError:
        raise
    except (SafetensorError, OSError, TypeError, ValueError) as error:
        raise StateError(f"{path} is not a complete state file: {error}") from error
