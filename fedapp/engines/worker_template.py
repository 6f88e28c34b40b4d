"""The template process, from which workers are forked.

A simulation's process forks it from itself after its imports. So PyTorch and the app are imported
once, and the server, the template and the workers share the memory of these imports.
"""

import gc
import multiprocessing
import multiprocessing.forkserver as forkserver
import multiprocessing.util
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import pairwise
from multiprocessing import resource_tracker
from typing import Any

_START = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"


def fork_template(folder: str) -> None:
    """Fork the template from this process, which must have imported what workers need.

    The processes' socket is in `folder`, a temporary one that somebody else removes: this process
    ends at once, without `multiprocessing`'s own clearing up.
    Call this from the main thread, before this process has started threads or asked for a GPU.
    Without this call, or on a platform without fork servers, workers do the imports themselves. The
    template ignores Ctrl-C, because its traceback would hide other messages; this process ends it.
    """
    if _START != "forkserver":
        return
    multiprocessing.current_process()._config["tempdir"] = folder  # type: ignore[attr-defined]
    sys.stdout.flush()
    sys.stderr.flush()
    resource_tracker.ensure_running()  # a process of its own
    gc.freeze()  # the collector otherwise writes to the pages that the processes share
    spawn = multiprocessing.util.spawnv_passfds
    multiprocessing.util.spawnv_passfds = _fork  # type: ignore[assignment]
    try:
        forkserver.ensure_running()
    finally:
        multiprocessing.util.spawnv_passfds = spawn


def _fork(path: str, command: Sequence[str], kept: Iterable[int]) -> int:
    """Fork a process for the last word of `python -c CODE`; only the files in `kept` stay open.

    It takes the place of `multiprocessing`'s function, which starts a new interpreter.
    """
    if pid := os.fork():
        return pid
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _close_files(kept)
        forkserver._forkserver._lock = threading.Lock()  # type: ignore[attr-defined]  # it is held
        exec(command[-1], {})  # the fork server, which ends by SystemExit
    except SystemExit:
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _close_files(kept: Iterable[int]) -> None:
    """Close all files of this process but the standard streams and `kept`."""
    bounds = [2, *sorted(kept), os.sysconf("SC_OPEN_MAX")]
    for low, high in pairwise(bounds):
        os.closerange(low + 1, high)


def worker_context() -> Any:
    """Return the `multiprocessing` context for workers; its type does not have Process."""
    return multiprocessing.get_context(_START)


def kill_workers() -> None:
    """End all workers and the template process at once.

    The template is private to `multiprocessing`, but would otherwise outlive this process shortly.
    """
    template = getattr(forkserver._forkserver, "_forkserver_pid", None)
    for pid in [*(child.pid for child in multiprocessing.active_children()), template]:
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
