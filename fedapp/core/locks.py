"""One process at a time: a file that is locked while a block of code runs.

Processes of one run, of several runs and of several users meet in folders: the data cache, a run's
directory. The lock ends with the process that holds it, however that ends; its file stays.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class LockHeld(Exception):  # noqa: N818 - a state of another process, which callers put in words
    """Another process holds the lock."""


@contextmanager
def lock_file(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Keep other processes out of the block; let all in where no lock can be had.

    So it is in a folder that cannot be written, and on a file system without locks.

    Raises:
        LockHeld: at once, where another process holds the lock and `wait` is off.
    """
    from filelock import FileLock, Timeout  # takes a tenth of a second

    lock = FileLock(path, timeout=-1 if wait else 0)
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
