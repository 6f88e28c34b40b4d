"""The files of a resumed or failed run: the model of its last round, and no loss of data."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from in_process import assert_same, settings, train_one
from safetensors.numpy import load_file

from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError
from fedapp.results import trackers
from fedapp.results.folders import lock_run
from fedapp.results.run_directory import RunDirectory
from fedapp.runtime.callbacks import checkpoints
from fedapp.runtime.server import training as server
from fedapp.runtime.server.opening import changed_schedule
from strategies.rounds.base import ClientStrategy
from strategies.rounds.report import RoundDiverged, RoundFailed

pytestmark = pytest.mark.usefixtures("few_images")


@pytest.fixture
def train(tmp_path):
    """Return `train_one` for this test's folder."""
    return partial(train_one, tmp_path)


@pytest.fixture
def fail_in(monkeypatch):
    """Return a function that makes the aggregation of one round raise an error."""
    aggregate = ClientStrategy.aggregate_train

    def install(bad_round: int, error: BaseException) -> None:
        def refusing(self, server_round, replies):
            if server_round == bad_round:
                raise error
            return aggregate(self, server_round, replies)

        monkeypatch.setattr(ClientStrategy, "aggregate_train", refusing)

    return install


def model(folder: Path) -> dict[str, np.ndarray]:
    return load_file(folder / "model.safetensors")


def checkpoint_of(run: RunDirectory, server_round: int) -> dict[str, np.ndarray]:
    """Return the model in a checkpoint, with the names that it has in model.safetensors."""
    saved = load_file(run.checkpoints / f"round-{server_round:06d}.safetensors")
    return {n.removeprefix("model/"): a for n, a in saved.items() if n.startswith("model/")}


@pytest.mark.parametrize("method", ["fedavg", "fedexp", "fedproto"])
def test_a_completed_run_that_is_resumed_keeps_its_model(train, method):
    before = model(train(method=method).path)
    resumed = train(method=method, resume="auto")
    assert_same(before, model(resumed.path))
    assert resumed.summary()["status"] == "completed"


@pytest.mark.parametrize("error", [UserError("2 of 2 clients have no node"), KeyboardInterrupt()])
def test_a_resume_without_nodes_leaves_the_files_of_the_run(train, monkeypatch, tmp_path, error):
    run = train(num_rounds=1)
    files = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}

    def no_nodes(*_):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(server, "wait_for_nodes", no_nodes)
        for rounds in (1, 3):  # none or two are left
            with pytest.raises(type(error)):
                train(num_rounds=rounds, eval_every=2, resume="auto")
    assert {path: path.read_bytes() for path in files} == files
    assert train(num_rounds=3, eval_every=2, resume="auto").summary()["rounds"] == 3
    assert RunDirectory.load(tmp_path / "one").config()["num-rounds"] == 3


def test_a_run_that_fails_at_once_after_resuming_keeps_its_model(train, fail_in, tmp_path):
    before = model(train(num_rounds=1).path)
    fail_in(2, RoundFailed("nobody replied"))
    with pytest.raises(UserError, match="nobody replied"):
        train(num_rounds=3, resume="auto")
    assert_same(before, model(tmp_path / "one"))


def test_a_failed_run_keeps_the_model_of_its_last_round_evaluated_or_not(train, fail_in, tmp_path):
    fail_in(3, RoundFailed("nobody replied"))
    with pytest.raises(UserError, match="nobody replied"):
        train(num_rounds=4, eval_every=4)
    run = RunDirectory.load(tmp_path / "one")
    assert [row["accuracy"] for row in run.rounds()] == [None, None]
    assert_same(checkpoint_of(run, 2), model(run.path))


class Tracker:
    """Counts how often it was closed."""

    closed = 0

    def log(self, row) -> None:
        pass

    def close(self, summary) -> None:
        self.closed += 1


@pytest.fixture
def tracker(monkeypatch) -> Tracker:
    opened = Tracker()
    monkeypatch.setitem(trackers.TRACKERS, "none", lambda run: opened)
    return opened


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("no space left")])
def test_an_interrupted_run_is_readable_and_can_be_resumed(
    train, pictures, fail_in, tmp_path, tracker, error
):
    fail_in(2, error)
    with pictures(), pytest.raises(type(error)):
        train(num_rounds=3)
    run = RunDirectory.load(tmp_path / "one")
    summary = run.summary()
    reason = "" if isinstance(error, KeyboardInterrupt) else repr(error)
    assert (summary["status"], summary["reason"]) == ("interrupted", reason)
    assert (summary["rounds"], summary["accuracy_final"]) == (1, None)
    assert (run.path / "report.html").is_file()
    assert_same(checkpoint_of(run, 1), model(run.path))
    assert tracker.closed == 1
    fail_in(0, error)
    assert train(num_rounds=3, resume="auto").summary()["status"] == "completed"


def test_the_tracker_is_closed_when_the_nodes_are_refused(train, tracker, monkeypatch):
    def refuse(*arguments):
        raise UserError("no node came")

    monkeypatch.setattr(server, "wait_for_nodes", refuse)
    with pytest.raises(UserError, match="no node came"):
        train()
    assert tracker.closed == 1


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_long_round_is_followed_by_a_checkpoint_that_is_not_due_yet(train, monkeypatch):
    kept = {"checkpoint_every": 100, "checkpoint_keep": 0}
    assert [path.name for path in train(num_rounds=2, **kept).checkpoints.iterdir()] == [
        "round-000002.safetensors"
    ]
    monkeypatch.setattr(checkpoints, "_OLDEST", 0.0)
    found = train(num_rounds=4, **kept, resume="auto").checkpoints.iterdir()
    assert sorted(path.stem[-1] for path in found) == ["2", "3", "4"]
    assert not list(train(num_rounds=5, checkpoint_every=0, resume="auto").checkpoints.glob("*5*"))


@pytest.mark.parametrize("every", [1, 0])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lr": 0.5}, "lr is 0.5 and was 0.05"),
        ({"partition": "iid"}, "partition is 'iid' and was "),
    ],
)
def test_resuming_with_another_configuration_changes_no_file(train, tmp_path, every, change, words):
    before = files(train(num_rounds=1, checkpoint_every=every).path)
    with pytest.raises(UserError, match=rf"another configuration \({words}"):
        train(checkpoint_every=every, **change, resume="auto")
    assert files(tmp_path / "one") == before


def test_a_run_without_checkpoints_cannot_be_resumed_and_is_not_trained_again(train, tmp_path):
    before = files(train(num_rounds=1, checkpoint_every=0).path)
    with pytest.raises(UserError, match="holds a completed run, and it has no checkpoints"):
        train(num_rounds=2, checkpoint_every=0, resume="auto")
    with pytest.raises(UserError, match="there is no checkpoint"):
        train(num_rounds=2, checkpoint_every=0, resume=str(tmp_path / "one"))
    assert files(tmp_path / "one") == before


@pytest.mark.parametrize("method", ["scaffold", "fedper"])
def test_a_run_without_checkpoints_starts_again_without_its_clients_states(
    train, fail_in, tmp_path, method
):
    changes = {"method": method, "num_rounds": 3, "checkpoint_every": 0}
    fail_in(3, KeyboardInterrupt())  # by then, clients have trained round 2
    with pytest.raises(KeyboardInterrupt):
        train(**changes)
    first = RunDirectory.load(tmp_path / "one").state_key()
    states = tmp_path / "client-states"
    assert [path.name for path in states.iterdir()] == [first]
    fail_in(0, KeyboardInterrupt())
    run = train(**changes, resume="auto", keep_state=True)
    assert [row["round"] for row in run.rounds()] == [1, 2, 3]
    assert run.summary()["status"] == "completed"
    assert first != run.state_key()


def test_states_of_an_attempt_that_is_given_up_are_removed(train, fail_in, tmp_path):
    changes = {"method": "scaffold", "num_rounds": 2, "checkpoint_every": 0}
    fail_in(2, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        train(**changes)
    fail_in(0, KeyboardInterrupt())
    assert list((tmp_path / "client-states").iterdir())
    train(**changes, resume="auto")
    assert not list((tmp_path / "client-states").iterdir())


@pytest.mark.parametrize("keeping", [{}, {"keep_state": True}, {"tolerate_failures": True}])
def test_states_of_a_diverged_run_go_unless_a_node_may_have_lied(train, fail_in, tmp_path, keeping):
    fail_in(2, RoundDiverged("the mean is not finite"))
    with pytest.raises(UserError, match="the mean is not finite"):
        train(method="scaffold", **keeping)
    assert RunDirectory.load(tmp_path / "one").summary()["diverged"]
    assert bool(list((tmp_path / "client-states").iterdir())) == bool(keeping)


def test_a_resumed_run_has_no_summary_while_it_trains(train, monkeypatch, tmp_path):
    finished = train(num_rounds=1)
    assert finished.summary()["status"] == "completed"
    left = finished.path / ".model.safetensors.123.tmp", finished.checkpoints / ".a.123.tmp"
    for file in left:
        file.write_bytes(b"of a process that was killed")
    aggregate, seen = ClientStrategy.aggregate_train, []

    def looking(*arguments):
        seen.append((finished.summary(), any(file.exists() for file in left)))
        return aggregate(*arguments)

    monkeypatch.setattr(ClientStrategy, "aggregate_train", looking)
    assert train(num_rounds=3, resume="auto").summary()["rounds"] == 3
    assert seen == [({}, False)] * 2


def test_missing_data_leave_no_run_directory(train, tmp_path):
    with pytest.raises(UserError, match="nowhere"):
        train(dataset="images", data_dir=str(tmp_path / "nowhere"))
    assert not (tmp_path / "one").exists()


def test_a_run_that_was_refused_before_its_first_round_can_be_started_anew(
    train, monkeypatch, tmp_path
):
    def refused(*arguments):
        raise UserError("no node came")

    with monkeypatch.context() as patch:
        patch.setattr(server, "wait_for_nodes", refused)
        with pytest.raises(UserError, match="no node came"):
            train(lr=0.5)
    summary = RunDirectory.load(tmp_path / "one").summary()
    assert (summary["status"], summary["reason"]) == ("failed", "no node came")
    assert train(num_rounds=1).summary()["status"] == "completed"


def test_a_second_process_in_a_run_directory_is_refused_and_changes_nothing(train, tmp_path):
    before = files(train(num_rounds=1).path)
    with (
        lock_run(tmp_path / "one"),
        pytest.raises(UserError, match="another process is running in"),
    ):
        train(num_rounds=2, resume="auto")
    assert files(tmp_path / "one") == before


def test_a_number_of_rounds_that_changes_the_schedule_is_logged(train, capsys):
    train(num_rounds=2, lr_schedule="step")
    capsys.readouterr()
    train(num_rounds=3, lr_schedule="step", resume="auto")
    output = capsys.readouterr().out
    assert (
        "num-rounds is 3 and was 2: a run of 3 rounds from the start would have had another "
        "learning rate (lr-schedule 'step') in its first 2 rounds" in output
    )


@pytest.mark.parametrize(
    ("changes", "done", "words"),
    [
        ({"lr_schedule": "step"}, 4, "learning rate (lr-schedule 'step')"),
        ({"lr_schedule": "step"}, 2, ""),  # both are at the first rate until then
        ({"lr_schedule": "constant"}, 4, ""),
        ({"lr_schedule": "exponential"}, 4, ""),
        ({"method": "fedkd", "lr_schedule": "constant"}, 1, "energy of compressed messages"),
    ],
)
def test_only_a_changed_schedule_of_finished_rounds_is_logged(tmp_path, changes, done, words):
    before = parse_config(settings(num_rounds=4, **changes))
    RunDirectory.create(tmp_path, "one", before.flat())
    note = changed_schedule(tmp_path / "one", before.model_copy(update={"num_rounds": 8}), done)
    assert bool(note) == bool(words)
    assert words in note
