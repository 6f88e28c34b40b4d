"""Waits for the effects of other processes."""

import time
from collections.abc import Callable
from typing import Any


def wait_until(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    """Return the first truthy value of `condition()`; raises AssertionError after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"no {what} within {seconds} s"
        time.sleep(min(0.1, seconds / 100))
    return value
