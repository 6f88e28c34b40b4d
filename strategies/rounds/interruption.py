"""How an interruption reaches a server: a round counts with all its parts or not at all.

Ctrl-C raises KeyboardInterrupt between any two statements of the main thread, for example between
the new model and the new state of a method, which are then those of different rounds: the
statements in `uninterrupted` are not divided. A server in another thread gets no signals; it stops
when it next looks for replies, if it was asked to.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_asked_to_stop = threading.Event()


def ask_to_stop() -> bool:
    """Let the server of this process stop in its next wait; returns False if it was asked before.

    Works from any thread and from a signal handler.
    """
    asked = _asked_to_stop.is_set()
    _asked_to_stop.set()
    return not asked


def stop_if_asked() -> None:
    """Raise KeyboardInterrupt if `ask_to_stop` was called."""
    if _asked_to_stop.is_set():
        raise KeyboardInterrupt


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let signals that end a run act after these statements; a second Ctrl-C acts at once.

    A second SIGTERM does not: a batch system and the parent process may both send it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals interrupt the main thread only
        return
    waiting: list[int] = []
    handlers = {int(number): signal.getsignal(number) for number in _SIGNALS}

    def wait(number: int, frame: FrameType | None) -> None:
        if number not in waiting:
            waiting.append(number)
        elif number == signal.SIGINT and callable(handler := handlers[number]):
            handler(number, frame)

    for number, handler in handlers.items():
        if handler is not None:  # None: not installed by Python, so it cannot be put back
            signal.signal(number, wait)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            if signal.getsignal(number) is wait:
                signal.signal(number, handler)
        for number in waiting:
            signal.raise_signal(number)
