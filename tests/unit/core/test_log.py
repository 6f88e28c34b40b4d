"""What is logged: plain lines on the stream of the moment, once, of a level that a user sets."""

import io
import logging
import subprocess
import sys

import pytest

from fedapp.core.errors import UserError
from fedapp.core.log import _Console, configure

SCRIPT = """
import io
import logging
from fedapp.core.log import _Console, configure
logging.basicConfig(stream=__import__("sys").stdout)
{before}
configure()
configure()
logging.getLogger("fedapp.runtime.x").info("a round: 5 %")
logging.getLogger("clients.base").warning("a client")
logging.getLogger("fedapp.experiments.sweep").info("progress")
logging.getLogger("flwr").warning("of Flower")
"""


@pytest.fixture
def said(monkeypatch):
    """Run a script in a process whose root logger has a handler; gives its stdout and stderr."""

    def run(level="", before=""):
        if level:
            monkeypatch.setenv("FEDAPP_LOG_LEVEL", level)
        command = [sys.executable, "-c", SCRIPT.format(before=before)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return done.stdout.splitlines(), done.stderr.splitlines()

    return run


def test_a_line_is_said_once_and_plainly_and_that_of_experiments_on_stderr(said):
    out, err = said()
    assert out == ["a round: 5 %", "a client", "WARNING:flwr:of Flower"]
    assert err == ["progress"]


@pytest.mark.parametrize(("level", "lines"), [("warning", ["a client"]), ("ERROR", [])])
def test_a_level_silences_what_is_below(said, level, lines):
    out, err = said(level)
    assert (out[:-1], err) == (lines, [])


def test_a_handler_of_the_program_around_is_left_alone(said):
    out, err = said(before='logging.getLogger("fedapp").addHandler(logging.NullHandler())')
    assert "a round: 5 %" not in out
    assert out[0] == "a client"
    assert not err


def test_a_level_that_is_none_is_one_sentence(monkeypatch):
    monkeypatch.setenv("FEDAPP_LOG_LEVEL", "loud")
    with pytest.raises(UserError, match="FEDAPP_LOG_LEVEL is 'LOUD' but must be one of DEBUG"):
        configure()


def test_lines_go_to_what_stdout_is_at_that_moment(capsys):
    logging.getLogger("fedapp.results").info("now")
    assert capsys.readouterr().out == "now\n"


def test_lines_that_nobody_reads_any_more_are_left_out(monkeypatch, capsys):
    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    console = _Console("stdout")
    monkeypatch.setattr("sys.stdout", Closed())
    console.emit(logging.makeLogRecord({"msg": "a line"}))
    assert capsys.readouterr().err == ""
