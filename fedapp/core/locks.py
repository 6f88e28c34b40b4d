"""Locks between processes: a file is locked while a block of code runs.

Processes of one run, of several runs and of several users share folders: the data cache, a run
directory. The end of a process, also a crash, releases its locks. The lock file remains.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class LockHeld(Exception):  # noqa: N818 - a state of another process; callers report it
    """Another process holds the lock."""


@contextmanager
def lock_file(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Keep other processes out of the block; without a lock where none is possible.

    No lock is possible in a folder without write access and on a file system without locks.

    Raises:
        LockHeld: at once, if another process holds the lock and `wait` is False.
    """
    from filelock import FileLock, Timeout  # takes a tenth of a second

    # A soft lock, which filelock would fall back to, stays held after a crash.
    lock = FileLock(path, timeout=-1 if wait else 0, fallback_to_soft=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise LockHeld(f"another process holds {path}") from None
    except (OSError, NotImplementedError):
        pass
    try:
        yield
    finally:
        lock.release()
