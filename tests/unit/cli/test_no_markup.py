"""Square brackets in names, paths and errors are printed as they are, by every command."""

import sys

import pytest
from in_process import ROOT

from fedapp.cli import app as cli
from fedapp.results.run_directory import RunDirectory

NAME = "[red]x[/b]"
# Each command with a name that it must repeat, in a table or in an error.
COMMANDS = {
    "run": ["--app", str(ROOT), "-c", f"method='{NAME}'"],
    "config": [NAME, "--app", str(ROOT)],
    "partition": ["--app", str(ROOT), "-c", f"dataset='{NAME}'"],
    "methods": [NAME],
    "runs": [NAME],
    "report": [NAME],
    "watch": [NAME],
    "compare": ["one", NAME],
    "analyse": [NAME],
    "personalise": [NAME],
    "calibrate": [NAME],
    "traffic": [NAME],
    "features": [NAME],
    "classify": [NAME, "x.png"],
    "test": [NAME],
    "export": [NAME],
    "sweep": ["--app", str(ROOT), "--name", "x", "--vary", f"method={NAME}"],
    "papers": [NAME],
    "reproduce": ["fedntd", NAME],
    "bench": ["--part", NAME],
    "certificates": [NAME],
    "doctor": ["--certificates", NAME],
    "state list": ["--state-dir", NAME],
    "state export": [NAME, "0", "FOLDER/x.safetensors"],
    "state clean": ["--run", NAME],
}
TAKES_NO_NAME = {"datasets", "presets", "measures"}


def run(command, capfd, monkeypatch, folder):
    arguments = [part.replace("FOLDER", str(folder)) for part in command]
    monkeypatch.setattr(sys, "argv", ["fedapp", *arguments])
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "500")
    with pytest.raises(SystemExit):
        cli.main()
    shown = capfd.readouterr()
    assert "Traceback" not in shown.err
    return shown.out + shown.err


def test_every_command_is_here():
    commands = cli.state_app.registered_commands
    state = {f"state {each.name or each.callback.__name__}" for each in commands}
    own = {command.__name__ for commands in cli.PANELS.values() for command in commands}
    assert own | state == COMMANDS.keys() | TAKES_NO_NAME


@pytest.mark.parametrize("command", COMMANDS)
def test_a_name_in_square_brackets_stays_whole(command, capfd, monkeypatch, tmp_path):
    RunDirectory.create(tmp_path, "one", {"method": "fedavg"})
    output = run([*command.split(), *COMMANDS[command]], capfd, monkeypatch, tmp_path)
    assert NAME in output.replace("\n", ""), output


def test_tables_of_runs_keep_the_brackets_of_their_names(capfd, monkeypatch, tmp_path):
    traffic = dict.fromkeys(("bytes_up", "bytes_down", "client_bytes_up", "client_bytes_down"), 1)
    for name in ("[red]a", "[bold]b"):
        made = RunDirectory.create(tmp_path, name, {"method": "[i]m", "seed": 0})
        made.log_round({"round": 1, "accuracy": 0.5, "loss": 1.0, "clients": 1, **traffic})
        made.write_summary({"method": "[i]m", "seed": 0, "status": "failed", "reason": "[b]why"})
    for command in ("compare", "traffic"):
        output = run([command, "[red]a", "[bold]b"], capfd, monkeypatch, tmp_path)
        assert "[red]a" in output, command
        assert "[bold]b" in output, command
