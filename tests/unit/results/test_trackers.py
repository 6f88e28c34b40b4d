"""Trackers get a run's numbers and nothing else, and say which package they need."""

import math
import sys
import types

import pytest

from fedapp.config.run_keys import RunKeys
from fedapp.core.errors import UserError
from fedapp.results.run_directory import RunDirectory
from fedapp.results.trackers import (
    TRACKERS,
    MlflowTracker,
    WandbTracker,
    check_tracker,
    numbers,
    open_tracker,
)

ROW = {"round": 2, "accuracy": 0.5, "loss": math.nan, "failures": ["x"], "alignment/gap": 0.1}

COMPLETED = {"status": "completed", "reason": "", "accuracy_final": 0.75, "at_chance": False}


@pytest.fixture
def run(tmp_path):
    return RunDirectory.create(tmp_path, "tracked", {"method": "fedavg", "lr": 0.1})


def test_only_finite_numbers_are_tracked():
    assert numbers(ROW) == {"accuracy": 0.5, "alignment/gap": 0.1}


@pytest.mark.parametrize(
    ("name", "module", "package"),
    [
        ("tensorboard", "torch.utils.tensorboard", "tensorboard"),
        ("wandb", "wandb", "wandb"),
        ("mlflow", "mlflow", "mlflow-skinny"),
    ],
)
def test_a_missing_package_is_named(run, monkeypatch, name, module, package):
    monkeypatch.setitem(sys.modules, module, None)
    sentence = rf"needs the package {package}: pip install -e '\.\[{name}"
    with pytest.raises(UserError, match=sentence):
        open_tracker(name, run)
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match=sentence):
        check_tracker(name)
    check_tracker("none")


def test_every_tracker_of_the_configuration_is_there():
    (literal,) = [RunKeys.model_fields["tracker"].annotation]
    assert set(literal.__args__) == set(TRACKERS)


def test_mlflow_keeps_the_run(run, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # its newest versions prefer a server
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path / 'mlruns'}")
    tracker = open_tracker("mlflow", run)
    tracker.log(ROW)
    tracker.close(COMPLETED)
    (found,) = mlflow.search_runs(experiment_names=["fedapp"], output_format="list")
    assert (found.data.metrics["accuracy"], found.data.params["lr"]) == (0.5, "0.1")
    assert found.data.metrics["accuracy_final"] == 0.75
    assert (found.info.status, found.data.tags["status"]) == ("FINISHED", "completed")


def test_wandb_works_offline(run, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    tracker = open_tracker("wandb", run)
    tracker.log(ROW)
    tracker.close(COMPLETED)
    assert list((run.path / "wandb").glob("offline-run-*"))


@pytest.mark.parametrize("address", ["", "http://tracker:5000"])
def test_mlflow_without_an_address_keeps_runs_where_runs_are(run, tmp_path, monkeypatch, address):
    asked = []
    mlflow = types.SimpleNamespace(
        set_tracking_uri=asked.append,
        set_experiment=lambda name: None,
        start_run=lambda run_name: None,
        log_params=lambda params: None,
        exceptions=types.SimpleNamespace(MlflowException=RuntimeError),
    )
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    open_tracker("mlflow", run)
    assert asked == ([] if address else [(tmp_path / "mlruns").as_uri()])


def test_tensorboard_hides_the_rounds_that_a_resumed_run_repeats(run, monkeypatch):
    opened: list[object] = []

    class Writer:
        def __init__(self, folder, purge_step):
            opened.append(purge_step)

        def add_scalar(self, key, value, step):
            opened.append((key, value, step))

        def close(self):
            opened.append("closed")

    module = types.SimpleNamespace(SummaryWriter=Writer)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    tracker = open_tracker("tensorboard", run)
    tracker.log({"round": 4, "loss": 0.5})
    tracker.close(COMPLETED)
    assert opened == [4, ("loss", 0.5, 4), "closed"]


@pytest.mark.parametrize(
    ("summary", "status", "code"),
    [
        (COMPLETED, "FINISHED", 0),
        ({"status": "failed", "reason": "round 1 has no update"}, "FAILED", 1),
        ({"status": "interrupted", "reason": ""}, "KILLED", 1),
        ({}, "FAILED", 1),
    ],
)
def test_trackers_are_told_how_the_run_ended(summary, status, code):
    told: dict[str, object] = {}
    mlflow = MlflowTracker.__new__(MlflowTracker)
    mlflow.mlflow = types.SimpleNamespace(
        set_tags=told.update,
        log_metrics=told.update,
        end_run=lambda status: told.update(end=status),
    )
    mlflow.close(summary)
    expected = {key: value for key, value in summary.items() if value}
    assert told == {"end": status, **expected}
    wandb, told = WandbTracker.__new__(WandbTracker), {}
    wandb.run = types.SimpleNamespace(
        summary=told, finish=lambda exit_code: told.update(end=exit_code)
    )
    wandb.close(summary)
    assert told == {"end": code, **expected}
