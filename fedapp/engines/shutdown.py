"""The end of a simulation's process, at once and with its workers."""

import os
import sys
import threading
from contextlib import suppress

from fedapp.engines.subprocesses import INTERRUPTED
from fedapp.engines.worker_template import kill_workers

stopping = threading.Lock()


def interrupted() -> None:
    """End this process with the exit code of an interruption."""
    stop(INTERRUPTED)


def stop(code: int) -> None:
    """End Ray's processes and then this process, at any point of its work."""
    if not stopping.acquire(blocking=False):
        return  # another thread is doing this
    if "ray" in sys.modules:
        with suppress(Exception):  # Ray may be starting
            sys.modules["ray"].shutdown()
    leave(code)


def leave(code: int) -> None:
    """End this process and its own workers at once."""
    with suppress(Exception):  # they may be starting
        kill_workers()
    os._exit(code)
