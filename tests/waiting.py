"""Waiting for what other processes do."""

import time
from collections.abc import Callable
from typing import Any


def wait_until(true: Callable[[], Any], seconds: float, what: str) -> Any:
    """Return what `true()` gives as soon as it is truthy; an AssertionError after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (value := true()):
        assert time.monotonic() < deadline, f"no {what} within {seconds} s"
        time.sleep(min(0.1, seconds / 100))
    return value
