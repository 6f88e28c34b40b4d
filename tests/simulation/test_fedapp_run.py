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

from fedapp.engines.launch import program

ROOT = Path(__file__).parents[2]
ENGINES = pytest.mark.parametrize("engine", ["workers", "ray"])
QUICK = "num-rounds=2 num-clients=10 participation=0.5 local-epochs=1"


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


@ENGINES
def test_it_trains_the_model_of_one_process_where_it_was_told_to(tmp_path, engine):
    keys = f"{QUICK} run-name='direct' output-dir='here'"
    run = start(tmp_path, "--engine", engine, "--nodes", "4", "-c", keys)
    output, errors = run.communicate(timeout=300)
    assert run.returncode == 0, output + errors
    assert "round 2/2" in output
    assert "DEPRECATED" not in output + errors
    whole = load_file(tmp_path / "here" / "direct" / "model.safetensors")
    final = federate(settings(batch_size="auto"))[0]
    assert_same(final, {name: whole[name] for name in final})


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
def test_its_processes_end_with_it(tmp_path, engine, how):
    keys = f"num-rounds=1000 run-name='long' output-dir='{tmp_path}'"
    run = start(tmp_path, "--engine", engine, "-c", keys)
    metrics = tmp_path / "long" / "metrics.jsonl"
    wait_until(lambda: metrics.exists() and metrics.stat().st_size, 120, "first round")
    mine = processes(run.pid)
    assert len(mine) >= 4  # the simulation, two workers and who started them
    home = Path(os.readlink(f"/proc/{mine[0]}/cwd"))
    os.killpg(run.pid, how) if how == signal.SIGINT else run.send_signal(how)
    run.wait(60)
    # Processes of Ray that lost it end by themselves.
    wait_until(lambda: not any(map(alive, mine)), 120, "end of all processes")
    if how == signal.SIGKILL:
        return
    assert run.returncode == 130
    assert not home.exists()
    if engine == "workers":  # its server could still write down what it has
        summary = json.loads((tmp_path / "long" / "summary.json").read_text())
        assert (summary["status"], summary["reason"]) == ("interrupted", "KeyboardInterrupt()")
        assert summary["rounds"] == len(metrics.read_text().splitlines())
        assert load_file(tmp_path / "long" / "model.safetensors")


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
