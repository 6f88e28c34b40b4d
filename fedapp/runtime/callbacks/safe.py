"""A user's callback, whose errors end no run and spoil no file."""

import copy
import logging
import traceback
from collections.abc import Callable
from typing import Any

from fedapp.core.files import json_text
from fedapp.runtime.callbacks.base import ActiveRun, Callback

log = logging.getLogger(__name__)


class SafeCallback(Callback):
    """Wraps a user's callback: after its first error, which is reported, it is not called again."""

    def __init__(self, name: str, callback: Callback) -> None:
        """Wrap a callback; `name` is its name in the configuration."""
        self.name, self.callback, self.failed, self.closed = name, callback, False, False

    def run_begins(self, run: ActiveRun) -> None:
        """Call the callback's hook."""
        self._call(lambda: self.callback.run_begins(run))

    def round_ends(self, run: ActiveRun, row: dict[str, Any]) -> None:
        """Call the callback's hook."""
        self._call(lambda: self.callback.round_ends(run, row), row)

    def run_ends(self, run: ActiveRun, summary: dict[str, Any]) -> None:
        """Call the callback's hook, and record a failure in the summary."""
        self._call(lambda: self.callback.run_ends(run, summary), summary)
        if self.failed:
            summary.setdefault("failed_callbacks", []).append(self.name)

    def close(self) -> None:
        """Call the callback's hook, once."""
        if not self.closed:
            self.closed = True
            self._call(self.callback.close)

    def _call(self, hook: Callable[[], None], record: dict[str, Any] | None = None) -> None:
        if self.failed:
            return
        before = copy.deepcopy(record or {})
        try:
            hook()
            _check_values(record or {}, before)
        except Exception as error:
            self.failed = True
            if record is not None:
                _restore(record, before)
            frame = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{frame.filename}, line {frame.lineno}"
            log.error(f"callback '{self.name}' is not called any more: {error!r} in {where}")


def _check_values(record: dict[str, Any], before: dict[str, Any]) -> None:
    """Raise the error of the first value that JSON cannot represent, or that a run needs."""
    for key, value in record.items():
        if not _is_writable(value):
            raise TypeError(f"JSON cannot hold {key!r}, which is of type {type(value).__name__}")
    for key, value in before.items():
        if key not in record:
            raise KeyError(f"{key!r} was removed, which the run needs")
        if not _is_same_kind(record[key], value):
            raise TypeError(f"{key!r} was {value!r} and has become {record[key]!r}")


def _is_same_kind(value: object, before: object) -> bool:
    """Return whether a field still has a value of its type; what was missing may be filled in."""
    number = int, float
    if before is None:
        return value is None or isinstance(value, int | float | list)
    return type(value) is type(before) or (isinstance(value, number) and isinstance(before, number))


def _is_writable(value: object) -> bool:
    try:
        json_text({"value": value})
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _restore(record: dict[str, Any], before: dict[str, Any]) -> None:
    """Restore the values that the run has made; remove added ones that cannot be written."""
    for key in [key for key, value in record.items() if not _is_writable(value)]:
        record.pop(key)
    record |= before
