"""The files of a run when the disk, the tracker or the evaluation fails."""

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from in_process import ROOT, settings

from fedapp import server_app
from fedapp.core.errors import UserError
from fedapp.engines.in_process import InProcessGrid, run_in_process
from fedapp.engines.resources import Resources
from fedapp.results import trackers
from fedapp.results.run_directory import RunDirectory
from fedapp.runtime.callbacks import standard
from fedapp.runtime.server import training as server
from strategies.rounds.base import ClientStrategy
from strategies.rounds.records import ERROR, ClientFailure

FULL = OSError(28, "No space left on device")


@pytest.fixture
def values(tmp_path):
    """Return a function that returns the configuration of run "one", with 4 clients."""

    def given(**changes):
        return settings(
            output_dir=str(tmp_path), num_clients=4, shards=5, participation=1.0,
            **{"method": "fedavg", "run_name": "one", "lr_schedule": "constant", **changes},
        )  # fmt: skip

    return given


@pytest.fixture
def train(values, tmp_path):
    """Return a function that trains run "one" and returns its directory."""

    def run(**changes) -> RunDirectory:
        run_config = values(**changes)
        server_app.run(InProcessGrid(run_config), run_config, "", 0.0)
        return RunDirectory.load(tmp_path / run_config["run-name"])

    return run


def refuse(*arguments, **options):
    raise FULL


def numbers(run: RunDirectory) -> list[int]:
    return [row["round"] for row in run.rounds()]


def test_rounds_are_on_disk_before_the_checkpoint_and_the_summary_that_count_them(
    train, monkeypatch, tmp_path
):
    synced, safe = {}, []
    sync, replace_file = os.fsync, os.replace

    def note(descriptor):
        sync(descriptor)
        synced[os.fstat(descriptor).st_ino] = os.fstat(descriptor).st_size

    def check(source, target):
        name = Path(target).name
        if name == "summary.json" or name.startswith("round-"):
            status = (tmp_path / "one" / "metrics.jsonl").stat()
            safe.append((name, synced.get(status.st_ino) == status.st_size))
        replace_file(source, target)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(os, "replace", check)
    train(num_rounds=3, checkpoint_every=3)
    assert safe == [("round-000003.safetensors", True), ("summary.json", True)]


def test_a_resume_with_fewer_rounds_than_there_are_changes_nothing(train):
    """It would end at once as completed, and remove the states of the clients."""
    before = train(num_rounds=2, checkpoint_every=1).rounds()
    with pytest.raises(UserError, match="has 2 rounds already, so num-rounds must be at least 2"):
        train(num_rounds=1, checkpoint_every=1, resume="auto")
    assert train(num_rounds=2, checkpoint_every=1, resume="auto").rounds() == before


def test_a_round_that_a_full_disk_refuses_is_written_with_the_next(train, monkeypatch, capsys):
    log = RunDirectory.log_round

    def full_until_round_3(self, *rows):
        if rows[-1]["round"] < 3:
            raise FULL
        log(self, *rows)

    monkeypatch.setattr(RunDirectory, "log_round", full_until_round_3)
    assert numbers(train(num_rounds=3)) == [1, 2, 3]
    output = capsys.readouterr().out
    assert "metrics.jsonl: round 1 not written: [Errno 28] No space left on device" in output
    assert "metrics.jsonl: round 1, 2 not written" in output


def test_a_resume_warns_of_lost_rounds(train, capsys):
    train(num_rounds=1, checkpoint_every=1).metrics_path.unlink()
    train(num_rounds=2, checkpoint_every=1, resume="auto")
    assert "metrics.jsonl has 0 of the 1 rounds of the checkpoint" in capsys.readouterr().out


def test_rounds_that_were_never_written_are_in_the_summary(train, tmp_path, monkeypatch):
    monkeypatch.setattr(RunDirectory, "log_round", refuse)
    with pytest.raises(UserError, match=r"one/metrics\.jsonl cannot be written: make room"):
        train(num_rounds=2)
    run = RunDirectory(tmp_path / "one")
    assert numbers(run) == []
    assert (run.summary()["rounds"], run.summary()["status"]) == (2, "failed")
    assert run.summary()["accuracy_final"] > 0


@pytest.mark.parametrize("method", ["save_model", "write_summary"])
def test_a_file_that_cannot_be_written_prevents_no_other_file(
    train, tmp_path, pictures, monkeypatch, capsys, method
):
    monkeypatch.setattr(RunDirectory, method, refuse)
    lost = {"save_model": "model.safetensors", "write_summary": "summary.json"}
    with pictures(), pytest.raises(UserError, match=f"one/{lost[method]} cannot be written"):
        train(num_rounds=1)
    run = RunDirectory(tmp_path / "one")
    for name in ("summary.json", "model.safetensors", "curves.png", "report.html"):
        assert (run.path / name).exists() == (name != lost[method])
    assert f"{lost[method]} not written: [Errno 28]" in capsys.readouterr().out


def test_no_tracker_is_opened_for_a_run_whose_first_file_cannot_be_written(train, monkeypatch):
    opened = []
    monkeypatch.setitem(trackers.TRACKERS, "none", lambda run: opened.append(run) or Outage(run))
    monkeypatch.setattr(RunDirectory, "write_partition", refuse)
    with pytest.raises(OSError, match="No space left on device"):
        train(num_rounds=1)
    assert not opened


class Outage:
    """A tracker whose server is unreachable."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.checkpoints, self.closed = folder, [], 0

    def log(self, row) -> None:
        self.checkpoints.append([path.name for path in self.folder.rglob("round-*")])
        raise ConnectionError("API request to\nhttp://tracker failed")

    def close(self, summary) -> None:
        self.closed += 1
        raise ConnectionError("still gone")


def test_a_failing_tracker_is_reported_once_and_stops_no_round(
    train, monkeypatch, tmp_path, capsys
):
    outage = Outage(tmp_path)
    monkeypatch.setitem(trackers.TRACKERS, "none", lambda run: outage)
    run = train(num_rounds=2, checkpoint_every=1)
    assert numbers(run) == [1, 2]
    assert run.summary()["status"] == "completed"
    output = capsys.readouterr().out
    assert output.count("tracker 'none' gets no more: API request to http://tracker failed;") == 1
    assert "still gone" not in output
    assert outage.closed == 1
    assert outage.checkpoints == [["round-000001.safetensors"]], "written before the tracker's turn"


@pytest.mark.parametrize(
    ("method", "name", "least"), [("fedexp", "step_length", 1), ("fednova", "effective_steps", 1)]
)
def test_a_methods_own_numbers_are_in_every_round_and_at_the_tracker(
    train, monkeypatch, method, name, least
):
    rows = []
    tracker = SimpleNamespace(log=rows.append, close=lambda: None)
    usual = train(num_rounds=1).rounds()[0]
    assert name not in usual
    monkeypatch.setitem(trackers.TRACKERS, "none", lambda run: tracker)
    run = train(method=method, num_rounds=2, run_name="own")
    assert [row.keys() - usual.keys() for row in run.rounds()] == [{name}] * 2
    values = [row[name] for row in run.rounds()]
    assert min(values) >= least
    assert [row[name] for row in rows if name in row] == values


def test_a_taken_run_name_is_refused_before_data_are_read(train, monkeypatch):
    train(num_rounds=1)
    monkeypatch.setattr(server_app, "ProcessContext", refuse)
    with pytest.raises(UserError, match="one already exists and is not empty; choose another"):
        train(num_rounds=1)


def test_clients_without_test_images_do_not_fail_a_run(train, monkeypatch):
    monkeypatch.setattr(ClientStrategy, "aggregate_evaluate", lambda *arguments: None)
    summary = train(method="fedper", num_rounds=1).summary()
    assert (summary["status"], summary["reason"], summary["diverged"]) == ("completed", "", False)
    assert summary["accuracy_final"] is None


def test_the_summary_of_a_completed_run_has_the_mean_of_its_last_ten_rounds(train):
    run = train(num_rounds=11, eval_every=3)
    tested = {row["round"]: row["accuracy"] for row in run.rounds() if row["accuracy"] is not None}
    assert list(tested) == [3, 6, 9, 11]
    assert run.summary()["accuracy_last10"] == pytest.approx(sum(tested.values()) / 4)


def test_a_run_whose_clients_could_not_be_evaluated_has_failed(train, monkeypatch, tmp_path):
    def nobody(self, server_round, replies):
        self.report.unevaluated = [0, 1, 2, 3]

    monkeypatch.setattr(ClientStrategy, "aggregate_evaluate", nobody)
    with pytest.raises(UserError, match="no client could be evaluated after round 1"):
        train(method="fedper", num_rounds=1)
    summary = RunDirectory.load(tmp_path / "one").summary()
    assert (summary["status"], summary["diverged"]) == ("failed", True)


def test_a_resumed_run_without_rounds_left_does_not_say_that_it_diverged(
    train, monkeypatch, tmp_path
):
    def lost(self, server_round, replies):
        self.report.unevaluated = [0]
        self.report.evaluation_failures += [ClientFailure(0, ERROR, "its node did not answer")]

    monkeypatch.setattr(ClientStrategy, "aggregate_evaluate", lost)
    keys = {"method": "fedper", "num_rounds": 1, "checkpoint_every": 1, "resume": "auto"}
    for _ in range(2):
        with pytest.raises(UserError, match="no client could be evaluated after round 1"):
            train(**keys, tolerate_failures=True)
        assert RunDirectory.load(tmp_path / "one").summary()["diverged"] is False


def test_a_loss_that_is_not_finite_at_the_end_fails_the_run(values, monkeypatch, tmp_path, capsys):
    evaluate = standard.evaluate_classes
    monkeypatch.setattr(
        standard, "evaluate_classes", lambda *given: replace(evaluate(*given), loss=float("nan"))
    )
    assert run_in_process(ROOT, values(num_rounds=1), Resources()) == 1
    reason = "the test loss is not finite after round 1"
    assert capsys.readouterr().out.strip().endswith(f"fedapp: {reason}")
    summary = RunDirectory.load(tmp_path / "one").summary()
    assert (summary["status"], summary["reason"]) == ("failed", reason)
    assert (summary["diverged"], summary["accuracy_final"]) == (True, None)


def test_a_diverged_run_is_failed_and_has_no_final_accuracy(train, tmp_path):
    with pytest.raises(UserError, match="round 1 has 0 usable updates"):
        train(lr=1e9, num_rounds=2)
    summary = RunDirectory.load(tmp_path / "one").summary()
    assert (summary["status"], summary["diverged"]) == ("failed", True)
    assert "round 1 has 0 usable updates" in summary["reason"]
    assert summary["accuracy_final"] is None


def test_an_interruption_while_states_are_removed_keeps_the_results(train, monkeypatch, tmp_path):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(server, "forget", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(method="scaffold", num_rounds=1)
    run = RunDirectory.load(tmp_path / "one")
    assert run.summary()["status"] == "completed"
    assert (run.path / "model.safetensors").is_file()
