"""Support for notebooks: the log of a run in the cell, and figures that display themselves.

Many notebooks do not show what a process writes to file descriptors. pyplot could display figures,
but it is global state, which the project does not use.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from threading import Lock, Thread, local
from typing import TYPE_CHECKING, TextIO

from fedapp.core.errors import UserError
from fedapp.results.plots.rendering import png

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHOW = "_repr_png_"  # the method that IPython calls to display an object as an image
_DOTS = 80  # per inch: a figure of a run is about 500 pixels wide
_ERROR_PREFIX = "fedapp: "
_redirected = Lock()
_OUTPUT_WAIT = 5.0  # seconds to wait for output after the end of a run's process


class Log(io.TextIOBase):
    """A stream that forwards a run's output and stores the error sentence of a failed run.

    Paths below the working directory become relative. Lines of several threads are not mixed.
    """

    def __init__(self, target: TextIO) -> None:
        """Take the stream of the cell."""
        self.target = target
        self.mistake = ""
        self._cwd = f"{Path.cwd()}{os.sep}"
        self._incomplete = local()  # a thread's incomplete line

    def write(self, text: str) -> int:
        """Forward complete lines; return the length of the text, as streams do."""
        lines, end, rest = (getattr(self._incomplete, "text", "") + text).rpartition("\n")
        self._incomplete.text = rest
        self._forward(lines + end)
        return len(text)

    def flush(self) -> None:
        """Forward incomplete lines too."""
        rest, self._incomplete.text = getattr(self._incomplete, "text", ""), ""
        self._forward(rest)
        self.target.flush()

    def _forward(self, text: str) -> None:
        for line in text.splitlines():
            if line.startswith(_ERROR_PREFIX):
                self.mistake = line.removeprefix(_ERROR_PREFIX)
        if text:
            self.target.write(text.replace(self._cwd, ""))

    def writable(self) -> bool:
        """Return True."""
        return True


@contextmanager
def logged() -> Iterator[Log]:
    """Redirect stdout and stderr through a `Log` to the current stdout.

    Raises UserError if they are redirected already, because threads share these streams.
    """
    if not _redirected.acquire(blocking=False):
        raise UserError(
            "a run or sweep is in progress in another thread of this process: "
            "`sweep` with `jobs` trains several runs at once"
        )
    try:
        log = Log(sys.stdout)
        with redirect_stdout(log), redirect_stderr(log):
            yield log
            log.flush()
    finally:
        _redirected.release()


@contextmanager
def pipe_to(log: Log) -> Iterator[int]:
    """Yield a file descriptor for a process; everything written to it is forwarded to `log`."""
    reading, writing = os.pipe()
    thread = Thread(target=_pump, args=(reading, log), daemon=True)
    thread.start()
    try:
        yield writing
    finally:
        os.close(writing)
        thread.join(_OUTPUT_WAIT)  # processes that the run has started may keep the pipe open


def _pump(reading: int, log: Log) -> None:
    with open(reading, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            log.write(line)
            log.flush()


def displayable(figure: Figure) -> Figure:
    """Return a figure that a notebook displays, with or without pyplot."""
    setattr(figure, _SHOW, partial(png, figure, _DOTS))
    return figure


def relative(path: Path) -> str:
    """Return a path relative to the working directory, if it is below it."""
    cwd = Path.cwd()
    return str(path.relative_to(cwd) if path.is_relative_to(cwd) else path)
