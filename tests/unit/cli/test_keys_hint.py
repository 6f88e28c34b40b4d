"""A key or an option that a command does not know: where it takes keys, it says how."""

import pytest
from typer.testing import CliRunner

from fedapp.cli.app import app

HINT = "Keys of a run are given as -c"


def printed(*arguments: str) -> str:
    done = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
    assert done.exit_code == 2
    return done.output


@pytest.mark.parametrize("unknown", [["method=fedavg"], ["--num-rounds", "3"]])
@pytest.mark.parametrize("command", ["run", "partition", "sweep", "personalise"])
def test_a_command_with_keys_says_how_they_are_given(command, unknown):
    needed = {"personalise": ["runs/x"], "sweep": ["--name", "x"]}.get(command, [])
    assert HINT in printed(command, *needed, *unknown)


def test_other_mistakes_and_other_commands_have_no_hint():
    assert HINT not in printed("run", "--workers", "many")
    assert HINT not in printed("compare", "--lr", "3")
