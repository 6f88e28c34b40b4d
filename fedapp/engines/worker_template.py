"""The process that workers are forked from: one that has imported PyTorch and the app.

It starts before all else of a simulation, so that its imports take place beside the server's; so
this module imports nothing heavy itself.
"""

import json
import multiprocessing
import multiprocessing.forkserver as forkserver
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

RUN_CONFIG = "FEDAPP_RUN_CONFIG"  # environment variable of `worker_imports`: JSON
_START = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"


def start_template(run_config: Mapping[str, Any]) -> None:
    """Let the process start to import what runs of this configuration need: from the main thread.

    It never sees Ctrl-C, whose traceback would be all that a user reads: this process ends it.
    """
    os.environ[RUN_CONFIG] = json.dumps(dict(run_config))
    if _START == "forkserver":
        forkserver.set_forkserver_preload(["fedapp.engines.worker_preload"])
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # that is inherited
        try:
            forkserver.ensure_running()
        finally:
            signal.signal(signal.SIGINT, handler)


def worker_context() -> Any:
    """Return the context of `multiprocessing` that makes workers; Process is not in its type."""
    return multiprocessing.get_context(_START)


def kill_workers() -> None:
    """End all workers at once, and the process that they are forked from.

    That one is private to `multiprocessing`, but would else import PyTorch to the end first.
    """
    template = getattr(forkserver._forkserver, "_forkserver_pid", None)
    for pid in [*(child.pid for child in multiprocessing.active_children()), template]:
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
