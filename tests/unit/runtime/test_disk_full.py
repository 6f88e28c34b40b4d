"""A disk that fills up while a run writes checkpoints: the last good one stays, the run goes on."""

import os
import subprocess

import pytest
from in_process import assert_same, federate, settings

from fedapp import server_app
from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError
from fedapp.engines.in_process import InProcessGrid
from fedapp.results import checkpoint
from fedapp.results.final_model import has_model
from fedapp.results.run_directory import RunDirectory
from fedapp.runtime.callbacks.recorder import Recorder


@pytest.fixture
def small_disk(tmp_path):
    """Mount a file system of 8 MB, and return its folder."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(disk)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("no mount program here")
    if done.returncode != 0:
        pytest.skip(f"mounting a small disk needs root: {done.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def fill(disk, left=65536):
    """Write until only 64 kB are left, too little for a checkpoint."""
    free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
    with (disk / "filler").open("wb") as file:
        file.write(bytes(max(0, free - left)))


def run_on(disk, **changes):
    """Return the configuration of run "full" of four clients, with a checkpoint of every round."""
    return settings(
        checkpoint_every=1, output_dir=str(disk), run_name="full", num_clients=4, shards=5,
        participation=1.0, **changes,
    )  # fmt: skip


def test_a_full_disk_prevents_a_checkpoint_and_not_the_run(
    small_disk, pictures, monkeypatch, capsys
):
    values = run_on(small_disk, num_rounds=3)
    run, kept = small_disk / "full", []
    end_of_round = Recorder.end_of_round

    def on_a_disk_that_fills(self, server_round, arrays):
        if server_round == 2:
            fill(small_disk)
        result = end_of_round(self, server_round, arrays)
        kept.append(checkpoint.load(run, self.config.fingerprint()).server_round)
        if server_round == 2:
            assert not list(run.rglob("*.tmp")), "nothing half written is left"
            (small_disk / "filler").unlink()
        return result

    monkeypatch.setattr(Recorder, "end_of_round", on_a_disk_that_fills)
    with pictures():
        server_app.run(InProcessGrid(values), values, "", 0.0)
    output = capsys.readouterr().out
    assert "checkpoint of round 2 not written" in output
    assert "No space left" in output
    assert kept == [1, 1, 3], "the checkpoint of round 1 was the newest sound one until round 3"
    assert (run / "report.html").exists()


def test_the_checkpoint_before_the_full_disk_gives_the_same_bits(small_disk, monkeypatch):
    values = run_on(small_disk, num_rounds=2, lr_schedule="constant")
    save = checkpoint.save

    def full_in_round_2(folder, saved, *arguments, **options):
        if saved.server_round == 2:
            fill(small_disk)
        try:
            save(folder, saved, *arguments, **options)
        finally:
            (small_disk / "filler").unlink(missing_ok=True)

    monkeypatch.setattr(checkpoint, "save", full_in_round_2)
    server_app.run(InProcessGrid(values), values, "", 0.0)
    resumed = {**values, "resume": "auto"}
    monkeypatch.setattr(checkpoint, "save", save)
    server_app.run(InProcessGrid(resumed), resumed, "", 0.0)
    arrays = checkpoint.load(small_disk / "full", parse_config(values).fingerprint()).arrays
    expected = federate(values)[0]
    assert_same(expected, {name: arrays[name] for name in expected})


def test_a_run_whose_model_does_not_fit_has_failed_and_a_resume_writes_it(
    small_disk, few_images, monkeypatch
):
    values = run_on(small_disk, num_rounds=1)
    save_model = RunDirectory.save_model

    def full_now(self, *arguments):
        fill(small_disk)
        save_model(self, *arguments)

    monkeypatch.setattr(RunDirectory, "save_model", full_now)
    run = RunDirectory(small_disk / "full")
    with pytest.raises(UserError, match=r"full/model\.safetensors cannot be written: make room"):
        server_app.run(InProcessGrid(values), values, "", 0.0)
    assert run.summary()["status"] == "failed"
    assert not (run.path / "model.safetensors").exists()
    monkeypatch.undo()
    (small_disk / "filler").unlink()
    again = {**values, "resume": "auto"}
    server_app.run(InProcessGrid(again), again, "", 0.0)
    assert run.summary()["status"] == "completed"
    assert (run.path / "model.safetensors").exists()


def test_a_model_that_does_not_fit_leaves_no_model_of_an_earlier_end(
    small_disk, few_images, monkeypatch
):
    values = run_on(small_disk, num_rounds=1)
    server_app.run(InProcessGrid(values), values, "", 0.0)
    run = RunDirectory(small_disk / "full")
    assert has_model(run)
    save_model = RunDirectory.save_model

    def full_now(self, *arguments):
        fill(small_disk)
        save_model(self, *arguments)

    monkeypatch.setattr(RunDirectory, "save_model", full_now)
    more = {**values, "num-rounds": 2, "resume": "auto"}
    with pytest.raises(UserError, match=r"full/model\.safetensors cannot be written: make room"):
        server_app.run(InProcessGrid(more), more, "", 0.0)
    assert len(run.rounds()) == 2
    assert not has_model(run)


@pytest.mark.parametrize("later", [None, "write_partition", "truncate_rounds", "write_config"])
def test_a_run_on_a_full_disk_is_not_resumed_and_its_directory_is_named(
    small_disk, few_images, monkeypatch, later
):
    values = run_on(small_disk, num_rounds=1)
    server_app.run(InProcessGrid(values), values, "", 0.0)
    kept = RunDirectory.load(small_disk / "full")
    before = kept.config(), kept.rounds(), kept.summary()

    def full_now(self, *arguments, **options):
        fill(small_disk, left=0)
        return original(self, *arguments, **options)

    if later is None:
        fill(small_disk, left=0)
    else:
        original = getattr(RunDirectory, later)
        monkeypatch.setattr(RunDirectory, later, full_now)
    more = {**values, "num-rounds": 2, "resume": "auto"}
    sentence = rf"run directory {kept.path} cannot be written \(No space left on device\); make"
    with pytest.raises(UserError, match=sentence):
        server_app.run(InProcessGrid(more), more, "", 0.0)
    assert before == (kept.config(), kept.rounds(), kept.summary())
