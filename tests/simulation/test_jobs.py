"""Runs in processes of their own give what runs in this process give, and say why they cannot."""

import csv
import signal
import subprocess
from pathlib import Path

import pytest
from waiting import wait_until

from fedapp.core.errors import UserError
from fedapp.engines.in_process import run_in_process
from fedapp.engines.launch import program
from fedapp.engines.resources import Resources
from fedapp.engines.subprocesses import INTERRUPTED
from fedapp.experiments import sweep
from fedapp.experiments.jobs import run_in_subprocess
from fedapp.results.run_directory import RunDirectory

ROOT = Path(__file__).parents[2]
BASE = {"num-rounds": 1, "num-clients": 10, "participation": 0.2, "local-epochs": 1}


def test_a_sweep_of_two_jobs_gives_the_models_of_single_runs(tmp_path, capsys):
    runs = sweep.plan(ROOT, BASE, {"method": ("fedavg",)}, [0, 1], tmp_path / "both")
    rows = sweep.execute(ROOT, runs, Resources(), jobs=2)
    assert [row["status"] for row in rows] == ["completed", "completed"]
    alone = {**runs[1].config, "output-dir": str(tmp_path), "run-name": "alone"}
    assert run_in_process(ROOT, alone, Resources()) == 0
    model = runs[1].directory.path / "model.safetensors"
    assert model.read_bytes() == (tmp_path / "alone" / "model.safetensors").read_bytes()
    assert "round 1/1" in (tmp_path / "both" / "fedavg-seed1.log").read_text()


def test_a_run_that_cannot_start_says_why(tmp_path):
    config = {**BASE, "dataset": "images", "data-dir": str(tmp_path / "none")}
    config |= {"output-dir": str(tmp_path), "run-name": "never"}
    with pytest.raises(UserError, match="none"):
        run_in_subprocess(ROOT, config, Resources())


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_jobs_end_in_good_order_with_the_sweep(tmp_path, how):
    command = [program("fedapp"), "sweep", "--app", str(ROOT), "-c", "num-rounds=1000"]
    command += ["--jobs", "1", "--name", "long", "--output-dir", str(tmp_path)]
    sweeping = subprocess.Popen(command, cwd=tmp_path)
    run = RunDirectory(tmp_path / "long" / "seed0")
    wait_until(lambda: run.metrics_path.exists() and run.rounds(), 120, "first round")
    sweeping.send_signal(how)
    assert sweeping.wait(60) == (INTERRUPTED if how == signal.SIGTERM else -signal.SIGKILL)
    wait_until(run.summary, 120, "summary")
    assert run.summary()["status"] == "interrupted"
    [row] = csv.DictReader((tmp_path / "long" / "sweep.csv").open())
    assert row["status"] == ("interrupted" if how == signal.SIGTERM else "to run")
