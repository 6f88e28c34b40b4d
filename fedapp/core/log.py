"""The log of a run: plain lines of Python's `logging` on the console.

Modules log by `logging.getLogger(__name__)`; the entry points of processes call `configure`. Lines
of `fedapp.experiments`, and those about installed packages, go to stderr, because commands that
print results to stdout log them. The variable FEDAPP_LOG_LEVEL sets the lowest level that is shown.
Flower's own logger is not changed.
"""

import logging
import os
import sys
from typing import TextIO

from fedapp.core.errors import UserError

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
_STREAMS = {
    "fedapp": "stdout",
    "fedapp.core.plugins": "stderr",
    "fedapp.experiments": "stderr",
    "strategies": "stdout",
    "clients": "stdout",
}


class _Console(logging.StreamHandler[TextIO]):
    """Writes to the current `sys.stdout` or `sys.stderr`, because Flower and tests replace them."""

    def __init__(self, stream: str) -> None:
        logging.Handler.__init__(self)
        self._stream = stream
        self.setFormatter(logging.Formatter("%(message)s"))

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return getattr(sys, self._stream)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the base's name
        """Leave out lines that nobody reads any more, as after `fedapp run | head`."""
        if not isinstance(sys.exc_info()[1], BrokenPipeError):
            super().handleError(record)


def configure() -> None:
    """Show the lines of this project's loggers on the console; a second call changes nothing.

    A logger that already has a handler, from an embedding program, is not changed. The other
    loggers do not propagate, so that a handler of the root logger repeats no line.

    Raises UserError for an unknown FEDAPP_LOG_LEVEL.
    """
    level = _level()
    configured = {name for name in _STREAMS if logging.getLogger(name).handlers}
    for name, stream in _STREAMS.items():
        if not configured & {name, name.partition(".")[0]}:
            logger = logging.getLogger(name)
            logger.addHandler(_Console(stream))
            logger.setLevel(level)
            logger.propagate = False


def set_level(level: str) -> None:
    """Set the least level that this process and those that it starts show from now on."""
    os.environ["FEDAPP_LOG_LEVEL"] = level
    for name in _STREAMS:
        logging.getLogger(name).setLevel(level)


def _level() -> str:
    level = (os.environ.get("FEDAPP_LOG_LEVEL") or "INFO").upper()
    if level not in LEVELS:
        raise UserError(
            f"FEDAPP_LOG_LEVEL is '{level}' but must be one of {', '.join(LEVELS)}; ERROR shows "
            "nothing but what ends a run"
        )
    return level
