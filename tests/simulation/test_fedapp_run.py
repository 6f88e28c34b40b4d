"""`fedapp run`: the same simulation on worker processes or Ray directly, and how it ends."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from in_process import assert_same, federate, settings
from safetensors.numpy import load_file
from waiting import wait_until

from fedapp.engines.in_process import run_in_process
from fedapp.engines.launch import program
from fedapp.engines.resources import Resources

ROOT = Path(__file__).parents[2]
QUICK = "num-clients=10 participation=0.5 local-epochs=1"
LONG = {"batch_size": "auto", "lr_schedule": "constant"}  # of the same job in this process


def command(*arguments: str) -> list[str]:
    return [program("fedapp"), "run", "--app", str(ROOT), "--workers", "2", *arguments]


def start(folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        command(*arguments),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.fixture(scope="module")
def first_row(tmp_path_factory):
    """The metrics of the first round, trained in this process."""
    folder = tmp_path_factory.mktemp("reference")
    keys = settings(**LONG, num_rounds=1, output_dir=str(folder), run_name="one")
    assert run_in_process(ROOT, keys, Resources()) == 0
    return json.loads((folder / "one" / "metrics.jsonl").read_text())


@pytest.mark.parametrize(
    ("engine", "changes", "code", "sentence"),
    [
        ("workers", "num-clients='many'", 2, "run-config key 'num-clients' is 'many' but must be"),
        ("workers", "run-name='taken' output-dir='.'", 1, "already exists and is not empty"),
        ("ray", "num-clients='many'", 2, "run-config key 'num-clients' is 'many' but must be"),
    ],
)
def test_a_run_that_cannot_be_says_so_in_one_sentence(tmp_path, engine, changes, code, sentence):
    (tmp_path / "taken" / "old").mkdir(parents=True)
    run = start(tmp_path, "--engine", engine, "-c", QUICK, "-c", changes)
    output, errors = run.communicate(timeout=120)
    assert run.returncode == code, output + errors
    assert sentence in output + errors
    assert "Traceback" not in output + errors


@pytest.mark.parametrize(
    ("engine", "how"),
    [(engine, how) for engine in ("workers", "ray") for how in (signal.SIGKILL, signal.SIGINT)]
    + [("workers", signal.SIGTERM)],
)
def test_it_trains_what_one_process_trains_and_its_processes_end_with_it(
    tmp_path, engine, how, first_row
):
    keys = f"{QUICK} num-rounds=1000 lr-schedule='constant' run-name='long' output-dir='here'"
    run = start(tmp_path, "--engine", engine, "--nodes", "4", "-c", keys)
    metrics = tmp_path / "here" / "long" / "metrics.jsonl"
    wait_until(lambda: metrics.exists() and metrics.stat().st_size, 120, "first round")
    mine = processes(run.pid)
    assert len(mine) >= 4  # the simulation, two workers and who started them
    home = Path(os.readlink(f"/proc/{mine[0]}/cwd"))
    os.killpg(run.pid, how) if how == signal.SIGINT else run.send_signal(how)
    run.wait(60)
    # Processes of Ray that lost it end by themselves.
    wait_until(lambda: not any(map(alive, mine)), 120, "end of all processes")
    row = json.loads(metrics.read_text().splitlines()[0])
    for name in ("accuracy", "loss", "train_loss"):
        assert row[name] == first_row[name]
    if how == signal.SIGKILL:
        return
    assert run.returncode == 130
    assert not home.exists()
    output, errors = run.communicate(timeout=60)
    assert "round    1/1000" in output
    assert "DEPRECATED" not in output + errors
    assert "Traceback" not in output + errors
    check_what_is_left(metrics.parent)


def check_what_is_left(directory: Path) -> None:
    """Check that an interrupted run's summary and model are those after its last round."""
    summary = json.loads((directory / "summary.json").read_text())
    assert (summary["status"], summary["reason"]) == ("interrupted", "")
    assert summary["rounds"] == len((directory / "metrics.jsonl").read_text().splitlines())
    whole = load_file(directory / "model.safetensors")
    final = federate(settings(**LONG, num_rounds=summary["rounds"]))[0]
    assert_same(final, {name: whole[name] for name in final})


@pytest.mark.parametrize("seconds", [0.2, 1.0])
def test_ctrl_c_while_it_starts_leaves_no_traceback_and_no_process(tmp_path, seconds):
    run = start(tmp_path, "--engine", "workers", "-c", QUICK)
    wait_until(lambda: len(processes(run.pid)) >= 3, 60, "process that forks the workers")
    time.sleep(seconds)
    mine = processes(run.pid)
    os.killpg(run.pid, signal.SIGINT)
    output, errors = run.communicate(timeout=60)
    assert run.returncode == 130
    assert "Traceback" not in output + errors
    assert not [pid for pid in mine if alive(pid)]


def processes(pid: int) -> list[int]:
    """All processes that a process started, and those that they did."""
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False)
    children = [int(word) for word in found.stdout.split()]
    return children + [each for child in children for each in processes(child)]


def alive(pid: int) -> bool:
    """Whether a process runs; one that ended but that nobody waited for does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return os.path.exists(f"/proc/{pid}/stat")
