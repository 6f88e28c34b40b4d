"""What a run says: plain lines of Python's `logging`, shown on the console and easy to silence.

Modules log by `logging.getLogger(__name__)`; the entry points of processes call `configure`. Lines
of `fedapp.experiments` go to stderr, because those commands print their results to stdout. The
variable FEDAPP_LOG_LEVEL sets the least level that is shown. Flower's own logger is left alone.
"""

import logging
import os
import sys
from typing import TextIO

from fedapp.core.errors import UserError

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
_STREAMS = {
    "fedapp": "stdout",
    "fedapp.experiments": "stderr",
    "strategies": "stdout",
    "clients": "stdout",
}


class _Console(logging.StreamHandler[TextIO]):
    """Writes to what `sys.stdout` or `sys.stderr` is at that moment: Flower and tests swap them."""

    def __init__(self, stream: str) -> None:
        logging.Handler.__init__(self)
        self._stream = stream
        self.setFormatter(logging.Formatter("%(message)s"))

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return getattr(sys, self._stream)


def configure() -> None:
    """Show the lines of this project's loggers on the console; a second call changes nothing.

    A logger that has a handler already, of the program around this one, is left as it is. Ours do
    not propagate, so that a handler of the root logger repeats no line.

    Raises UserError for a FEDAPP_LOG_LEVEL that is no level.
    """
    level = _level()
    taken = {name for name in _STREAMS if logging.getLogger(name).handlers}
    for name, stream in _STREAMS.items():
        if not taken & {name, name.partition(".")[0]}:
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
    wanted = (os.environ.get("FEDAPP_LOG_LEVEL") or "INFO").upper()
    if wanted not in LEVELS:
        raise UserError(
            f"FEDAPP_LOG_LEVEL is '{wanted}' but must be one of {', '.join(LEVELS)}; ERROR shows "
            "nothing but what ends a run"
        )
    return wanted
