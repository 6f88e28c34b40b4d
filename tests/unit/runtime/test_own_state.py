"""State of methods of one's own, and files of one's own, across rounds and resumed runs."""

import shlex
from functools import partial

import numpy as np
import pytest
from in_process import federate, settings, train_one
from small_clients import strategy_of
from typer.testing import CliRunner

from clients.base import LocalClient
from clients.scaffold import ScaffoldClient
from fedapp.cli.app import app
from fedapp.config.run_config import RunConfig
from fedapp.core.errors import UserError
from fedapp.results.run_directory import RunDirectory
from strategies.fedavg import FedAvg
from strategies.rounds.report import RoundFailed


def test_a_client_whose_row_names_no_state_cannot_lose_one_silently(monkeypatch):
    def keep(self, received, update, lr):
        update.state = {"mine": np.ones(1, np.float32)}

    monkeypatch.setattr(LocalClient, "finish", keep)
    sentence = r"LocalClient has a state to keep, but its method's row names none: .*keeps="
    with pytest.raises(RoundFailed, match=sentence):
        federate(settings(method="fedavg", num_rounds=1), nodes=2, state_key="own")


def test_a_row_that_names_a_state_that_its_client_has_not_is_refused_at_once(monkeypatch):
    monkeypatch.setattr(ScaffoldClient, "finish", lambda self, received, update, lr: None)
    sentence = (
        "ScaffoldClient has no state to keep, but its method's row names one: set update.state"
    )
    with pytest.raises(RoundFailed, match=sentence):
        federate(settings(method="scaffold", num_rounds=1), nodes=2)


def test_a_strategy_that_cannot_restore_its_state_says_so():
    class Forgetful(FedAvg):
        def state(self):
            return {"mine": np.ones(1)}

    strategy = strategy_of(Forgetful)
    with pytest.raises(NotImplementedError, match=r"Forgetful has a state\(\) and no load_state"):
        strategy.restore(strategy.save())
    plain = strategy_of(FedAvg)
    plain.restore(plain.save())


def test_a_run_whose_strategy_cannot_restore_its_state_is_not_resumed(train, monkeypatch):
    monkeypatch.setattr(FedAvg, "state", lambda self: {"mine": np.ones(1)})
    train(num_rounds=1)
    sentence = r"^resume: .+ cannot be continued: FedAvg has a state\(\) and no load_"
    with pytest.raises(UserError, match=sentence):
        train(num_rounds=2, resume="auto")


@pytest.fixture
def train(tmp_path):
    """Return `train_one` for this test's folder."""
    return partial(train_one, tmp_path)


def test_a_completed_run_whose_clients_states_are_gone_stays_completed(train):
    before = train(method="scaffold", num_rounds=1)
    with pytest.raises(UserError, match=r"has completed, and its clients' states were removed"):
        train(method="scaffold", num_rounds=2, resume="auto")
    assert before.summary()["status"] == "completed"
    assert len(before.rounds()) == 1
    changes = {"num_rounds": 2, "resume": "auto", "state_missing": "reinit"}
    assert len(train(method="scaffold", **changes).rounds()) == 2


def test_a_completed_run_goes_on_with_the_states_that_it_kept(train):
    train(method="scaffold", num_rounds=1, keep_state=True)
    assert len(train(method="scaffold", num_rounds=2, resume="auto").rounds()) == 2


def test_a_run_resumes_only_with_the_extension_file_of_its_rounds(train, monkeypatch, tmp_path):
    monkeypatch.setattr(RunConfig, "extension", lambda self: "mine.py 0123")
    train(method="fedavg", num_rounds=1)
    monkeypatch.setattr(RunConfig, "extension", lambda self: "mine.py 4567")
    sentence = r"with the extension mine.py 0123 instead of mine.py 4567; restore the file"
    with pytest.raises(UserError, match=sentence):
        train(method="fedavg", num_rounds=2, resume="auto")
    with (tmp_path / "one" / "config.toml").open("a") as file:
        file.write("half-step = 0.5\n")  # a key of the earlier file
    with pytest.raises(UserError, match=sentence):
        train(method="fedavg", num_rounds=2, resume="auto")


def test_a_run_of_another_method_is_refused_for_its_method(train, monkeypatch):
    train(method="fedavg", num_rounds=1)
    monkeypatch.setattr(RunConfig, "extension", lambda self: "mine.py 4567")
    with pytest.raises(UserError, match=r"another configuration \(.*method is 'fedprox' and was"):
        train(method="fedprox", num_rounds=2, resume="auto")


def test_the_command_of_a_resumed_run_repeats_it_in_a_directory_of_its_own(
    train, tmp_path, monkeypatch
):
    train(num_rounds=1)
    first = train(num_rounds=2, resume="auto")
    _, *arguments = shlex.split(first.summary()["command"])
    done = CliRunner().invoke(app, [*arguments, "--engine", "in-process"])
    assert done.exit_code == 0, done.output
    (other,) = (path for path in tmp_path.glob("*-*") if (path / "summary.json").exists())
    assert RunDirectory.load(other).rounds()[-1]["loss"] == first.rounds()[-1]["loss"]
