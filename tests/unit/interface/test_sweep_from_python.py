"""`fedapp.sweep`: the command's sweep, as objects."""

import csv
from pathlib import Path

import numpy as np
import pytest

from fedapp import sweep
from fedapp.core.errors import UserError
from fedapp.interface import sweeps

KEYS = {"num_rounds": 1, "num_clients": 10, "participation": 0.2, "engine": "in-process"}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_sweep_has_its_runs_and_goes_on_where_it_stopped(here, capsys):
    vary = {"lr": np.array([0.05, 0.1])}
    made = sweep("first", vary, seeds=[0], method="fedavg", **KEYS)
    assert made.completed
    assert made.path == here / "runs" / "first"
    assert [each.varied for each in made.runs] == [
        {"lr": 0.05, "seed": 0},
        {"lr": 0.1, "seed": 0},
    ]
    assert "2 runs, 0 ended before; results in runs/first/sweep.csv" in capsys.readouterr().out
    again = sweep("first", vary, seeds=range(2), method="fedavg", **KEYS)
    assert "4 runs, 2 ended before" in capsys.readouterr().out
    assert len(again.runs) == 4
    row = again.summary[0]
    finals = [each.summary["accuracy_final"] for each in again.runs[:2]]
    assert (row["combination"], row["seeds"]) == ("lr=0.05", [0, 1])
    assert row["accuracy_final"] == pytest.approx(np.mean(finals))
    assert row["accuracy_final_std"] == pytest.approx(np.std(finals, ddof=1))
    assert "lr=0.05" in again._repr_html_()
    assert repr(again) == "<Sweep first: 4 of 4 runs completed>"
    assert list(again.to_pandas()["seed"]) == [0, 1, 0, 1]
    figure = again.plot()
    assert [line.get_label() for line in figure.axes[0].lines] == [
        "lr=0.05, 2 runs", "lr=0.1, 2 runs",
    ]  # fmt: skip
    assert figure.axes[0].lines[0].get_ydata()[0] == pytest.approx(100 * np.mean(finals))


def test_a_run_that_fails_is_a_row_and_does_not_stop_the_others():
    made = sweep("bad", {"lr": [1e9, 0.05]}, method="fedavg", **KEYS)
    assert not made.completed
    assert [row["status"] for row in made.rows] == ["failed", "completed"]
    assert made.rows[0]["reason"].startswith("round 1 has 0 usable updates")
    assert "round 1 has 0 usable updates" in made._repr_html_()
    assert len(made.runs) == 2


def test_jobs_are_processes_of_their_own(monkeypatch):
    monkeypatch.setattr(sweeps.sweeps, "execute", lambda *arguments: list(arguments))
    made = sweep("jobs", {"method": ["fedavg"]}, seeds=[4], jobs=2, num_rounds=1)
    _, planned, _, runner, jobs = made.rows
    assert (runner.__name__, jobs) == ("run_in_subprocess", 2)
    assert planned[0].config["seed"] == 4
    assert made.runs == []


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"vary": {"metod": ["fedavg"]}}, "'metod' does not exist; did you mean 'method'"),
        ({"vary": {"method": "fedavg"}}, "method is 'fedavg' but must be a list of values"),
        ({"vary": {"lr": [0.1, 0.1]}}, "vary gives 'lr' a value twice"),
        ({"vary": {"lr": [None]}}, "vary: None of 'lr' is not a word, number"),
        ({"vary": {"seed": [1]}}, "vary cannot name 'seed': use seeds"),
        ({"seeds": 3}, "seeds is 3 but must be a list"),
        ({"seeds": [1, 1]}, "seeds must be different whole numbers"),
        ({"seeds": [0.5]}, "seeds has 0.5, which is no whole number"),
        ({"vary": {"lr": []}}, "vary gives 'lr' no value"),
        ({"run_name": "x"}, "sweep cannot name 'run-name'"),
        ({"preset": "seed=2"}, "preset cannot name 'seed'"),
        ({"vary": {"lr": [0.1]}, "lr": 0.2}, "'lr' has one value in sweep and is varied too"),
        ({"name": "a/b"}, "--name 'a/b' must be a plain folder name"),
        ({"jobs": 2}, "engine is for jobs=0"),
        ({"jobs": -1, "engine": None}, "--jobs is -1"),
    ],
)
def test_a_mistake_is_said_before_anything_starts(here, asked, sentence):
    with pytest.raises(UserError) as caught:
        sweep(**{"name": "x", **KEYS, **asked})
    assert sentence in str(caught.value)
    assert not list(Path("runs").glob("*/*"))


def test_values_travel_as_they_are():
    values = ["a b", "feddr+", 1, 1.5, 1e-05, True]
    assert sweeps._values({"x_y": values}) == {"x-y": tuple(values)}


def test_the_table_of_runs_is_written(here):
    sweep("table", seeds=[0], method="fedavg", **KEYS)
    rows = list(csv.DictReader((here / "runs" / "table" / "sweep.csv").open()))
    assert [row["status"] for row in rows] == ["completed"]
