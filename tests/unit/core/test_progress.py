"""Progress bars: on a terminal only, not in workers, not with --quiet, and never an item lost."""

import io
import sys

import pytest

from fedapp.core import log, progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    """Return a function that puts a terminal in place of stderr (capturing would undo it here)."""
    monkeypatch.setattr(progress, "_shown", True)
    monkeypatch.setenv("FEDAPP_LOG_LEVEL", "INFO")
    monkeypatch.setenv("TERM", "xterm")
    log.set_level("INFO")

    def install():
        stream = Terminal()
        monkeypatch.setattr(sys, "stderr", stream)
        return stream

    yield install
    log.set_level("INFO")


def test_a_terminal_sees_a_bar_and_every_item_comes(terminal):
    stream = terminal()
    assert list(progress.tracked(iter([3, 1, 2]), "decoding [red]", total=3)) == [3, 1, 2]
    assert "decoding [red]" in stream.getvalue()


@pytest.mark.parametrize("hidden", ["a pipe", "a worker", "quiet"])
def test_nothing_is_shown_elsewhere(terminal, monkeypatch, hidden):
    stream = terminal()
    if hidden == "a pipe":
        monkeypatch.setattr(stream, "isatty", lambda: False)
    elif hidden == "a worker":
        monkeypatch.setattr(progress, "_shown", False)
    else:
        log.set_level("WARNING")
    assert list(progress.tracked([1, 2], "decoding")) == [1, 2]
    assert stream.getvalue() == ""
