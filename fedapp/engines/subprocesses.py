"""Processes that run one task: how they get it, and how they and their parents end.

A terminal sends SIGINT to all processes of a command, or SIGHUP when it is closed; `kill` and batch
systems send SIGTERM to one or to all of them. These signals raise KeyboardInterrupt for a proper
end: temporary folders are removed, a run writes its summary, and child processes get SIGTERM.
Children also end if their parent crashes, because their standard input is then closed.
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
_PATIENCE = 60.0  # seconds for a process to end properly
_running: set["subprocess.Popen[str]"] = set()


def install_signal_handlers(act: Callable[[], object] | None = None) -> None:
    """Let SIGINT, SIGTERM and SIGHUP call `act`, or raise KeyboardInterrupt, in the main thread.

    A process that ignores SIGHUP, as under nohup, goes on doing so. After the first signal SIGTERM
    and SIGHUP are ignored: both a batch system and the parent process may send SIGTERM, both the
    shell and the closing terminal SIGHUP. A second SIGINT acts again.
    """

    def handler(*_: object) -> None:
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is handler:
                signal.signal(number, lambda *_: None)
        if act is None:
            raise KeyboardInterrupt
        act()

    signal.signal(signal.SIGINT, handler)
    signal.signal(signal.SIGTERM, handler)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # the terminal was closed
        signal.signal(signal.SIGHUP, handler)


def run_task(module: str, task: Any, **options: Any) -> int:
    """Let a module of the app run a task in a process of its own; return its exit code.

    Args:
        module: for `python -m`; it begins with `install_signal_handlers`, `take_task` and
            `watch_parent`.
        task: a JSON value; other types are sent as their text.
        options: further arguments of `subprocess.Popen`.
    """
    command = [sys.executable, "-m", module]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True, **options) as process:
        _running.add(process)
        try:
            assert process.stdin is not None
            with suppress(BrokenPipeError):  # it ended at once and reported the reason
                process.stdin.write(json.dumps(task, default=str) + "\n")
                process.stdin.flush()
            code = process.wait()
        except KeyboardInterrupt:
            ended = _interrupt(process)  # Ray can exit with 1 while it shuts down
            code = COMPLETED if ended == COMPLETED else INTERRUPTED
        finally:
            _running.discard(process)
    return INTERRUPTED if -code in (signal.SIGINT, signal.SIGTERM) else code


def _interrupt(process: "subprocess.Popen[str]") -> int:
    """Let a process end properly, and wait for it; it ignores a second SIGTERM."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        return process.wait(_PATIENCE)
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.close()  # as if this process had ended
    return process.wait()


def end_tasks() -> None:
    """Send SIGTERM to all processes of `run_task` in any thread, for a proper end."""
    for process in list(_running):
        process.terminate()


def take_task() -> Any:
    """Return the task of this process, one line of JSON on its standard input."""
    return json.loads(sys.stdin.readline())


def watch_parent(at_its_end: Callable[[], object] | None = None) -> None:
    """When the parent process has ended, call `at_its_end` or send SIGTERM to this process.

    A thread of `run_task`'s process does this, after `take_task`.
    """
    call_after(lambda: os.read(sys.stdin.fileno(), 1), at_its_end or _end)


def call_after(wait: Callable[[], object], act: Callable[[], object]) -> None:
    """Let a thread call `act` when `wait` returns, at the end of the parent process.

    `wait` is the way in which this kind of process notices the end of its parent.
    """
    threading.Thread(target=lambda: (wait(), act()), daemon=True).start()


def _end() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_PATIENCE)
    os._exit(INTERRUPTED)
