"""`flwr run .` on Ray: whole runs, their files and their determinism."""

import shutil

import pytest
from in_process import ROOT, assert_same, federate, settings
from safetensors.numpy import load_file

from fedapp.engines.in_process import run_in_process
from fedapp.engines.resources import Resources
from fedapp.results.run_directory import RunDirectory

QUICK = {"num_rounds": 2, "num_clients": 10, "participation": 0.5, "local_epochs": 1, "threads": 1}
QUICK |= {"batch_size": "auto"}


@pytest.fixture(scope="module")
def reference(simulate):
    """A run with one worker and three SuperNodes."""
    more = {"client_eval_every": 1, "checkpoint_every": 1, "lr_schedule": "constant"}
    return simulate("reference", nodes=3, workers=1, **more)


def test_a_run_leaves_a_whole_run_directory(reference):
    assert reference.status == "finished:completed", reference.log
    names = {path.name for path in reference.directory.iterdir()}
    assert names >= {
        "config.toml", "metrics.jsonl", "summary.json", "model.safetensors", "curves.png",
        "report.html", "checkpoints", "partition.json",
    }  # fmt: skip
    rows = reference.rounds()
    assert [row["round"] for row in rows] == [1, 2]
    wanted = [
        "round",
        "seconds",
        "clients",
        "failed",
        "train_loss",
        "accuracy",
        "loss",
        "bytes_down",
        "bytes_up",
    ]
    assert all(set(wanted) <= set(row) for row in rows)
    assert rows[-1]["clients"] == 5
    assert rows[-1]["client_count"] == 10
    summary = reference.summary()
    assert (summary["method"], summary["status"], summary["rounds"]) == ("feddr+", "completed", 2)
    assert summary["images_per_second"] > 0


def test_the_log_has_one_line_per_round_and_the_run_directory(reference):
    lines = [line for line in reference.log.splitlines() if line.startswith("round ")]
    assert len(lines) == 2
    for word in ("1/2", "accuracy", "loss", "clients", "down", "up", "ETA"):
        assert word in lines[0]
    assert str(reference.directory) in reference.log


def test_the_same_run_without_processes_gives_the_same_bits(reference):
    """The client code does not know where it runs: plain calls and Ray workers agree."""
    final = federate(settings(**QUICK, lr_schedule="constant"), nodes=4)[0]
    whole = reference.model()
    assert_same(final, {name: whole[name] for name in final})


def test_a_run_resumed_on_other_workers_and_supernodes_equals_an_uninterrupted_one(
    simulate, reference, tmp_path
):
    """One worker and three SuperNodes train two rounds, two workers and ten nodes the third."""
    shutil.copytree(reference.directory, tmp_path / "copy")
    more = {"num_rounds": 3, "resume": "auto", "output_dir": str(tmp_path)}
    resumed = simulate("copy", nodes=10, workers=2, lr_schedule="constant", **more)
    assert resumed.status == "finished:completed", resumed.log
    assert [row["round"] for row in resumed.rounds()] == [1, 2, 3]
    keys = {**QUICK, "num_rounds": 3, "output_dir": str(tmp_path), "run_name": "whole"}
    assert run_in_process(ROOT, settings(**keys, lr_schedule="constant"), Resources(4)) == 0
    whole = RunDirectory(tmp_path / "whole")
    assert_same(load_file(whole.path / "model.safetensors"), resumed.model())
    assert [r["accuracy"] for r in whole.rounds()] == [r["accuracy"] for r in resumed.rounds()]
