"""The template process, which has imported PyTorch and the app, and from which workers are forked.

It starts first in a simulation, so that its imports run in parallel with the server's. Therefore
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

RUN_CONFIG = "FEDAPP_RUN_CONFIG"  # environment variable for `worker_preload`: JSON
_START = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"


def start_template(run_config: Mapping[str, Any]) -> None:
    """Start the template process, which imports the packages of this configuration.

    Call this from the main thread. The template ignores Ctrl-C, because its traceback would hide
    other messages; this process ends it.
    """
    os.environ[RUN_CONFIG] = json.dumps(dict(run_config))
    if _START == "forkserver":
        forkserver.set_forkserver_preload(["fedapp.engines.worker_preload"])
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the template inherits this
        try:
            forkserver.ensure_running()
        finally:
            signal.signal(signal.SIGINT, handler)


def worker_context() -> Any:
    """Return the `multiprocessing` context for workers; its type does not have Process."""
    return multiprocessing.get_context(_START)


def kill_workers() -> None:
    """End all workers and the template process at once.

    The template is private to `multiprocessing`, but would otherwise first finish its imports.
    """
    template = getattr(forkserver._forkserver, "_forkserver_pid", None)
    for pid in [*(child.pid for child in multiprocessing.active_children()), template]:
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
