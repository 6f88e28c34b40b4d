"""A sweep goes on when a file cannot be written; its long names fit into a file system."""

import csv
import re
import subprocess
import sys

import pytest
from sweep_runs import BASE, ROOT, FakeRunner, make_plan

from fedapp.core.errors import UserError
from fedapp.engines.resources import Resources
from fedapp.engines.subprocesses import INTERRUPTED
from fedapp.experiments import sweep


def test_files_that_cannot_be_written_stop_no_other_run(tmp_path, monkeypatch):
    runs = make_plan(tmp_path / "sweep")
    runner = FakeRunner()

    def full(project, values, resources):
        if values["run-name"] == runs[0].directory.name:
            raise OSError(28, "No space left on device")
        return runner(project, values, resources)

    write, written = sweep.write_table, []

    def csv_once(path, rows):
        written.append(len(written))
        if len(written) in (1, 3):
            raise OSError(28, "No space left on device")
        write(path, rows)

    monkeypatch.setattr(sweep, "write_table", csv_once)
    rows = sweep.execute(ROOT, runs, Resources(), full)
    assert [row["status"] for row in rows] == ["failed"] + ["completed"] * (len(runs) - 1)
    assert "No space left" in rows[0]["reason"]


def test_a_run_that_another_process_completed_meanwhile_is_no_failure(tmp_path):
    """The same sweep in two terminals."""
    runs = make_plan(tmp_path)
    runner, other = FakeRunner(), FakeRunner()

    def meanwhile(project, values, resources):
        if values["run-name"] == runs[0].directory.name:
            other(project, runs[1].config, resources)
        return runner(project, values, resources)

    rows = sweep.execute(ROOT, runs, Resources(), meanwhile)
    assert {row["status"] for row in rows} == {"completed"}
    assert len(runner.started) == len(runs) - 1


def test_a_run_that_another_process_was_training_is_read_when_it_has_ended(tmp_path):
    runs = make_plan(tmp_path)
    runner, other = FakeRunner(), FakeRunner()

    def busy(project, values, resources):
        if values["run-name"] == runs[0].directory.name:
            raise UserError("another process is running this run")
        if not runs[0].outcome:
            other(project, runs[0].config, resources)
        return runner(project, values, resources)

    rows = sweep.execute(ROOT, runs, Resources(), busy)
    assert {row["status"] for row in rows} == {"completed"}
    assert rows[0]["accuracy_final"] is not None


@pytest.mark.parametrize("begun", [True, False])
def test_an_interrupted_run_is_not_called_failed(tmp_path, caplog, begun):
    [run] = make_plan(tmp_path, vary={}, seeds=(0,))

    def interrupted(project, values, resources):
        if begun:
            FakeRunner()(project, values, resources)
            run.directory.write_summary({"status": "interrupted", "reason": ""})
        return INTERRUPTED

    with caplog.at_level("INFO"):
        [row] = sweep.execute(ROOT, [run], Resources(), interrupted)
    assert (row["status"], row["reason"]) == ("interrupted", "")
    assert "[1/1] seed0 interrupted" in caplog.messages
    assert make_plan(tmp_path, vary={}, seeds=(0,))[0].outcome == ""  # the same command goes on


def test_a_run_that_is_killed_when_it_continues_ends_no_other(tmp_path):
    """A run that continues has removed the summary of its earlier end."""
    runs = make_plan(tmp_path)
    FakeRunner(failing=[runs[0].directory.name])(ROOT, runs[0].config, Resources())
    runner = FakeRunner()

    def killed(project, values, resources):
        if values["run-name"] == runs[0].directory.name:
            runs[0].directory.remove_summary()
            return -9
        return runner(project, values, resources)

    rows = sweep.execute(ROOT, runs, Resources(), killed)
    assert [row["status"] for row in rows] == ["failed"] + ["completed"] * (len(runs) - 1)


@pytest.mark.parametrize("text", [b"run;status\nx;y\n", b"\xff"])
def test_a_table_of_another_program_is_refused_before_training(tmp_path, text):
    runs, runner = make_plan(tmp_path), FakeRunner()
    (tmp_path / "sweep.csv").write_bytes(text)
    with pytest.raises(UserError, match=r"sweep\.csv is not as fedapp writes it"):
        sweep.execute(ROOT, runs, Resources(), runner)
    assert not runner.started


def test_the_folder_of_a_sweep_is_checked_first(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=f"the sweep's folder {tmp_path}/file/x cannot be written"):
        sweep.sweep_folder(tmp_path / "file", "x")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").touch()
    with pytest.raises(UserError, match="run is the folder of a run: choose another --name"):
        sweep.sweep_folder(tmp_path, "run")
    assert sweep.sweep_folder(tmp_path, "new") == tmp_path / "new"


def test_a_long_name_is_cut_and_stays_unique():
    names = {sweep.run_name({"data-dir": "/a" * 200 + end}, 0) for end in ("1", "2")}
    assert len(names) == 2
    assert all(len(name.encode()) <= 240 for name in names)
    assert all(name.endswith("-seed0") for name in names), "by which other seeds are found"


def test_two_hosts_keep_the_newest_lines_of_each_other(tmp_path):
    """The other host starts while the first one's runs train, and ends before them."""
    here = make_plan(tmp_path, vary={"lr": (0.1,)}, seeds=(0, 1))
    there = make_plan(tmp_path, vary={"lr": (0.2,)}, seeds=(0, 1))
    runner = FakeRunner()

    def meanwhile(project, values, resources):
        if values["run-name"] == here[0].directory.name:
            sweep.execute(ROOT, there, Resources(), runner)
        return runner(project, values, resources)

    sweep.execute(ROOT, here, Resources(), meanwhile)
    with (tmp_path / "sweep.csv").open() as file:
        table = {row["run"]: row["status"] for row in csv.DictReader(file)}
    assert table == {each.directory.name: "completed" for each in [*there, *here]}


def test_a_sweep_of_an_own_method_and_another_one_is_continued(tmp_path):
    """The other method's run records no key of the own one."""
    page = (ROOT / "docs" / "own_loss.md").read_text()
    own = next(code for code in re.findall(r"```python\n(.*?)```", page, re.S) if '"half' in code)
    (tmp_path / "half.py").write_text(own)
    command = [
        sys.executable, "-m", "fedapp", "sweep", "--extension", "half.py", "--name", "two",
        "--jobs", "1", "--vary", "method=half,fedavg", "--output-dir", str(tmp_path),
        "-c", "half-step=0.7 num-rounds=1 num-clients=10",
    ]  # fmt: skip
    for completed in (0, 2):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("skip: completed") == completed


def test_a_shared_key_is_named_only_if_no_run_has_an_effect_of_it(tmp_path):
    keys = {**BASE, "tau": 2.0, "mu": 0.1, "lr": 0.1}
    runs = sweep.plan(ROOT, keys, {"method": ("fedavg", "fedprox")}, [0], tmp_path)
    assert sweep.without_effect(runs, ["tau", "mu", "lr"]) == ["tau has no effect in any run"]
