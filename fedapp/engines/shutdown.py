"""The end of a simulation's process, at once and with its workers."""

import os
import sys
import threading
import time
from contextlib import suppress

from fedapp.engines.subprocesses import INTERRUPTED
from fedapp.engines.worker_template import kill_workers

_PATIENCE = 30.0  # seconds for Ray, which can hang while it ends
_stopping = threading.Lock()
_asked: list[int] = []  # the exit code of the thread that holds the lock


def interrupted() -> None:
    """End this process with the exit code of an interruption."""
    stop(INTERRUPTED)


def stop(code: int) -> None:
    """End Ray's processes and then this process, at any point of its work."""
    if not _stopping.acquire(blocking=False):
        return  # another thread is doing this
    _asked.append(code)
    if "ray" in sys.modules:
        _mute()
        limit = threading.Timer(_PATIENCE, leave, (code,))
        limit.daemon = True
        limit.start()
        with suppress(Exception):  # Ray may be starting
            sys.modules["ray"].shutdown()
    leave(code)


def _mute() -> None:
    """Discard the errors of threads that wait for Ray's workers, and of Ray about these threads.

    If a thread asks for a result just when Ray's processes end, Ray's library prints a C++ stack
    and exits with code 1; `run_task` and Ray's own processes cope with that.
    """
    sys.stderr.flush()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)


def finish(code: int) -> None:
    """End this process after its work; with another thread's code if that one is stopping it."""
    if not _stopping.acquire(blocking=False):
        time.sleep(_PATIENCE)
    leave(_asked[0] if _asked else code)


def leave(code: int) -> None:
    """End this process and its own workers at once."""
    with suppress(Exception):  # they may be starting
        kill_workers()
    os._exit(code)
