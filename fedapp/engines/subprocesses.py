"""Processes that do one task: how they are given it, and how they and who started them end.

A terminal sends SIGINT to all processes of a command; `kill` and batch systems send SIGTERM to one
of them or to all. Either raises KeyboardInterrupt, so that what is open is closed: temporary
folders are removed, a run writes its summary, and processes that were started are told to do so.
They end too when who started them is gone without a word: their standard input ends then.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

COMPLETED, FAILED, MISTAKE, INTERRUPTED = 0, 1, 2, 130  # exit codes
_PATIENCE = 60.0  # seconds in which a process may end in good order
_running: set["subprocess.Popen[str]"] = set()


def install_signal_handlers(act: Callable[[], object] | None = None) -> None:
    """Let SIGINT and SIGTERM call `act`, or raise KeyboardInterrupt: in the main thread.

    After the first of them SIGTERM does nothing: a batch system may send it, and then who started
    this process. SIGINT does so again.
    """

    def heard(*_: object) -> None:
        signal.signal(signal.SIGTERM, lambda *_: None)
        if act is None:
            raise KeyboardInterrupt
        act()

    signal.signal(signal.SIGINT, heard)
    signal.signal(signal.SIGTERM, heard)


def run_task(module: str, task: Any, **options: Any) -> int:
    """Let a module of the app do a task in a process of its own; returns its exit code.

    Args:
        module: what `python -m` runs; it begins with `install_signal_handlers` and `take_task`.
        task: what JSON can hold; other values are sent as their text.
        options: as `subprocess.Popen` takes them.
    """
    command = [sys.executable, "-m", module]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True, **options) as process:
        _running.add(process)
        try:
            assert process.stdin is not None
            with suppress(BrokenPipeError):  # it ended at once, and has said why
                process.stdin.write(json.dumps(task, default=str) + "\n")
                process.stdin.flush()
            code = process.wait()
        except KeyboardInterrupt:
            code = _interrupt(process)
        finally:
            _running.discard(process)
    return INTERRUPTED if -code in (signal.SIGINT, signal.SIGTERM) else code


def _interrupt(process: "subprocess.Popen[str]") -> int:
    """Let a process end in good order, and wait for it; one that has been told takes no note."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        return process.wait(_PATIENCE)
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.close()  # as if this process were gone
    return process.wait()


def end_tasks() -> None:
    """Tell all processes that `run_task` waits for, in any thread, to end in good order."""
    for process in list(_running):
        process.terminate()


def take_task(at_end_of_parent: Callable[[], object] | None = None) -> Any:
    """Return the task of this process, and watch the one that gave it.

    When that one is gone, a thread calls `at_end_of_parent`, or does as if SIGTERM had come.
    """
    task = json.loads(sys.stdin.readline())
    call_after(lambda: os.read(sys.stdin.fileno(), 1), at_end_of_parent or _end)
    return task


def call_after(wait: Callable[[], object], act: Callable[[], object]) -> None:
    """Let a thread call `act` when `wait` returns: when the process that started this one is gone.

    Each kind of process has a way of its own to see that, which `wait` is.
    """
    threading.Thread(target=lambda: (wait(), act()), daemon=True).start()


def _end() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_PATIENCE)
    os._exit(INTERRUPTED)
