"""How a simulation's process ends: at once, and with its workers."""

import os
import sys
import threading
from contextlib import suppress

from fedapp.engines.subprocesses import INTERRUPTED
from fedapp.engines.worker_template import kill_workers

stopping = threading.Lock()


def interrupted() -> None:
    """End this process as a signal does."""
    stop(INTERRUPTED)


def stop(code: int) -> None:
    """End this process in the middle of its work, and Ray's processes before it."""
    if not stopping.acquire(blocking=False):
        return  # that is being done
    if "ray" in sys.modules:
        with suppress(Exception):  # it may be starting just now
            sys.modules["ray"].shutdown()
    leave(code)


def leave(code: int) -> None:
    """End this process at once, with our own workers."""
    with suppress(Exception):  # they may be starting just now
        kill_workers()
    os._exit(code)
