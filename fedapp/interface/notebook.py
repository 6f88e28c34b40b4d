"""What makes runs at home in a notebook: their log in the cell, and figures that show themselves.

A run's process writes to file descriptors, which many notebooks do not show, and pyplot, which
would show a figure, is global state that nothing else here touches.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from threading import Thread, local
from typing import TYPE_CHECKING, TextIO

from fedapp.results.plots.rendering import png

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHOW = "_repr_png_"  # what IPython calls to show an object as a picture
_DOTS = 80  # per inch: a figure of a run is about 500 pixels wide
_MISTAKE = "fedapp: "
_LAST_WORDS = 5.0  # seconds to wait for output after a run's process has ended


class Log(io.TextIOBase):
    """A stream that passes a run's output on, and notes the sentence that says why it failed.

    Paths below the working directory are written from there. Lines of several threads stay whole.
    """

    def __init__(self, target: TextIO) -> None:
        """Take the stream of the cell."""
        self.target = target
        self.mistake = ""
        self._here = f"{Path.cwd()}{os.sep}"
        self._begun = local()  # a thread's line that has no end yet

    def write(self, text: str) -> int:
        """Pass whole lines on; returns the length of the text, as streams do."""
        lines, end, rest = (getattr(self._begun, "text", "") + text).rpartition("\n")
        self._begun.text = rest
        self._pass_on(lines + end)
        return len(text)

    def flush(self) -> None:
        """Show what was written."""
        rest, self._begun.text = getattr(self._begun, "text", ""), ""
        self._pass_on(rest)
        self.target.flush()

    def _pass_on(self, text: str) -> None:
        for line in text.splitlines():
            if line.startswith(_MISTAKE):
                self.mistake = line.removeprefix(_MISTAKE)
        if text:
            self.target.write(text.replace(self._here, ""))

    def writable(self) -> bool:
        """Return True."""
        return True


@contextmanager
def logged() -> Iterator[Log]:
    """Send all that is printed, to stderr too, to the stdout of now, through a `Log`."""
    log = Log(sys.stdout)
    with redirect_stdout(log), redirect_stderr(log):
        yield log
        log.flush()


@contextmanager
def pipe_to(log: Log) -> Iterator[int]:
    """Give a file descriptor for a process to write to; what comes through it goes to `log`."""
    reading, writing = os.pipe()
    thread = Thread(target=_pump, args=(reading, log), daemon=True)
    thread.start()
    try:
        yield writing
    finally:
        os.close(writing)
        thread.join(_LAST_WORDS)  # what the process has started may hold the pipe open


def _pump(reading: int, log: Log) -> None:
    with open(reading, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            log.write(line)
            log.flush()


def shown(figure: Figure) -> Figure:
    """Return a figure that a notebook shows, whether pyplot is in use there or not."""
    setattr(figure, _SHOW, partial(png, figure, _DOTS))
    return figure


def relative(path: Path) -> str:
    """Write a path from the working directory, where it is below it."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
