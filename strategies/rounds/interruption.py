"""Statements that an interruption must not divide: a round counts with all its parts or not at all.

Ctrl-C raises KeyboardInterrupt between any two statements of the main thread, for example between
the new model and the new state of a method, which are then those of different rounds.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let SIGINT and SIGTERM act after these statements; the same signal again acts at once."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals interrupt the main thread only
        return
    waiting: list[int] = []
    handlers = {int(number): signal.getsignal(number) for number in _SIGNALS}

    def wait(number: int, frame: FrameType | None) -> None:
        if number not in waiting:
            waiting.append(number)
        elif callable(handler := handlers[number]):
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
