"""What a run leaves if it is interrupted while it ends, or cannot save what it needs."""

import pytest
from in_process import settings

from fedapp import server_app
from fedapp.analysis import class_statistics
from fedapp.analysis.callback import Measures
from fedapp.core.errors import UserError
from fedapp.engines.in_process import InProcessGrid
from fedapp.results.final_model import has_model
from fedapp.results.run_directory import RunDirectory
from fedapp.runtime.callbacks import Callback
from fedapp.runtime.callbacks import standard as callbacks
from fedapp.runtime.callbacks.safe import SafeCallback

pytestmark = pytest.mark.usefixtures("few_images")

FULL = OSError(28, "No space left on device")


@pytest.fixture
def train(tmp_path):
    """Return a function that trains a run of 4 clients and returns its directory."""

    def run(**changes) -> RunDirectory:
        values = settings(
            output_dir=str(tmp_path), num_clients=4, shards=5, participation=1.0,
            **{"method": "fedavg", "run_name": "one", "lr_schedule": "constant", **changes},
        )  # fmt: skip
        server_app.run(InProcessGrid(values), values, "", 0.0)
        return RunDirectory.load(tmp_path / values["run-name"])

    return run


def test_a_run_whose_clients_keep_states_ends_without_its_checkpoint(train, tmp_path, monkeypatch):
    """It could not be repeated: clients keep the states of two trainings only."""
    save = RunDirectory.save_checkpoint

    def full_from_round_2(self, checkpoint, keep):
        if checkpoint.server_round >= 2:
            raise FULL
        save(self, checkpoint, keep)

    keys = {"method": "scaffold", "checkpoint_every": 1, "num_rounds": 4}
    with monkeypatch.context() as full:
        full.setattr(RunDirectory, "save_checkpoint", full_from_round_2)
        with pytest.raises(UserError, match="checkpoint of round 2 cannot be written, and its"):
            train(**keys)
    assert RunDirectory.load(tmp_path / "one").summary()["status"] == "failed"
    again = train(**keys, resume="auto")
    whole = train(**keys, run_name="whole")
    assert again.model_path.read_bytes() == whole.model_path.read_bytes()


@pytest.mark.parametrize("callback", ["FinalModel", "Figures"])
def test_an_interruption_while_results_are_written_loses_no_other_file(
    train, tmp_path, monkeypatch, callback, pictures
):
    def interrupted(self, run, summary):
        raise KeyboardInterrupt

    with pictures(), monkeypatch.context() as patched:
        patched.setattr(getattr(callbacks, callback), "run_ends", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train()
    run = RunDirectory.load(tmp_path / "one")
    assert run.summary()["status"] == "interrupted"
    assert (run.path / "report.html").exists()
    assert run.model_path.exists() == (callback == "Figures")


@pytest.fixture
def stop(train, tmp_path, monkeypatch):
    """Return a function that ends a resumed run by an error while its model is written."""

    def by(error: type[BaseException]) -> RunDirectory:
        def ended(self, *arguments):
            raise error

        train(num_rounds=1, checkpoint_every=1)
        with monkeypatch.context() as patched:
            patched.setattr(RunDirectory, "save_model", ended)
            with pytest.raises(error):
                train(num_rounds=2, checkpoint_every=1, resume="auto")
        return RunDirectory(tmp_path / "one")

    return by


def test_a_run_that_is_killed_while_its_model_is_written_does_not_count_as_completed(train, stop):
    class Killed(BaseException):
        """The end of the process at this place: nothing after it runs."""

    run = stop(Killed)
    assert run.model_path.exists(), "that of round 1"
    assert not has_model(run)
    assert has_model(train(num_rounds=2, checkpoint_every=1, resume="auto"))


@pytest.mark.parametrize("asked", [KeyboardInterrupt, SystemExit])
def test_an_interruption_of_the_model_leaves_no_earlier_one(train, stop, asked):
    run = stop(asked)
    assert (run.summary()["status"], run.summary()["rounds"]) == ("interrupted", 2)
    assert not run.model_path.exists(), "it would be that of round 1"
    assert train(num_rounds=2, checkpoint_every=1, resume="auto").model_path.exists()


def test_states_of_a_run_that_is_interrupted_at_its_very_end_are_still_used(
    train, tmp_path, monkeypatch
):
    def interrupted(self, run, summary):
        raise KeyboardInterrupt

    keys = {"method": "scaffold", "checkpoint_every": 1}
    with monkeypatch.context() as patched:
        patched.setattr(callbacks.Figures, "run_ends", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(**keys, num_rounds=1)
    longer = train(**keys, num_rounds=2, resume="auto")
    whole = train(**keys, num_rounds=2, run_name="whole")
    assert longer.model_path.read_bytes() == whole.model_path.read_bytes()


@pytest.mark.parametrize("error", [UserError("no node"), ConnectionError("lost"), MemoryError()])
def test_a_run_without_its_class_statistics_has_a_summary_that_says_why(
    train, tmp_path, monkeypatch, error
):
    def lost(*_):
        raise error

    monkeypatch.setattr(class_statistics, "_answers", lost)
    with pytest.raises(UserError):
        train(num_rounds=1, class_statistics=True)
    summary = RunDirectory.load(tmp_path / "one").summary()
    assert summary["status"] == "failed"
    assert str(error) in summary["reason"]


def test_a_picture_that_cannot_be_drawn_spoils_no_result(train, monkeypatch, caplog, pictures):
    def broken(*_):
        raise ValueError("a wrong font")

    monkeypatch.setattr(callbacks, "curves", broken)
    with pictures():
        run = train(num_rounds=1)
    assert "curves.png is not made: a wrong font" in caplog.text
    assert run.summary()["status"] == "completed"
    assert (run.path / "report.html").is_file()


def test_measures_that_cannot_be_written_leave_model_and_summary(train, tmp_path, monkeypatch):
    def damaged(*_):
        raise UserError("analysis.json is damaged")

    monkeypatch.setattr(Measures, "run_ends", damaged)
    with pytest.raises(UserError, match=r"analysis\.json is damaged"):
        train(num_rounds=1)
    run = RunDirectory.load(tmp_path / "one")
    assert (run.summary()["status"], run.summary()["reason"]) == (
        "failed",
        "analysis.json is damaged",
    )
    assert has_model(run)


def test_callbacks_of_a_run_that_does_not_begin_are_closed_once(train, monkeypatch):
    closed = []
    own = SafeCallback("own", Callback())
    monkeypatch.setattr(own.callback, "close", lambda: closed.append(1), raising=False)
    monkeypatch.setattr(server_app, "user_callbacks", lambda _: [own])
    with pytest.raises(UserError, match="data-dir"):
        train(dataset="cifar10", data_dir="/nowhere")
    assert closed == [1]
    own.closed = False
    train(num_rounds=1)
    assert closed == [1, 1]
