"""What a resumed run trains or tests again, and what it finds: states, scores, the best model."""

from functools import partial
from types import SimpleNamespace

import pytest
from in_process import train_one

from clients.base import LocalClient
from fedapp.core.errors import UserError
from fedapp.results.run_directory import RunDirectory
from fedapp.runtime.callbacks import best_model
from fedapp.runtime.callbacks.standard import ClientScores
from strategies.rounds.base import ClientStrategy
from strategies.rounds.report import RoundDiverged

pytestmark = pytest.mark.usefixtures("few_images")


def test_a_last_round_that_no_client_could_test_is_repeated_by_a_resumed_run(tmp_path, monkeypatch):
    evaluate = LocalClient.evaluate

    def failing(self, parameters, config):
        if config["server_round"] == 2:
            raise OSError("the disk is gone")
        return evaluate(self, parameters, config)

    keys = {"method": "fedper", "num_rounds": 2, "tolerate_failures": True, "lr": 0.05}
    with monkeypatch.context() as patched:
        patched.setattr(LocalClient, "evaluate", failing)
        with pytest.raises(UserError, match="no client could be evaluated after round 2"):
            train_one(tmp_path / "parts", **keys)
    failed = RunDirectory.load(tmp_path / "parts" / "one")
    assert failed.summary()["status"] == "failed"
    parts = train_one(tmp_path / "parts", **keys, resume="auto")
    whole = train_one(tmp_path / "whole", **keys)
    assert parts.rounds()[-1]["accuracy"] == whole.rounds()[-1]["accuracy"]
    assert parts.model_path.read_bytes() == whole.model_path.read_bytes()


@pytest.mark.parametrize("keeping", [{}, {"keep_state": True}, {"tolerate_failures": True}])
def test_a_diverged_run_resumes_if_its_clients_states_were_kept(tmp_path, monkeypatch, keeping):
    aggregate = ClientStrategy.aggregate_train

    def diverging(self, server_round, replies):
        if server_round == 2:
            raise RoundDiverged("the mean is not finite")
        return aggregate(self, server_round, replies)

    train = partial(train_one, tmp_path, method="scaffold", **keeping)
    with monkeypatch.context() as patched:
        patched.setattr(ClientStrategy, "aggregate_train", diverging)
        with pytest.raises(UserError, match="the mean is not finite"):
            train()
    if keeping:
        assert train(resume="auto").summary()["status"] == "completed"
    else:
        with pytest.raises(UserError, match="its clients' states were removed at its end"):
            train(resume="auto")


@pytest.mark.parametrize(("first", "stays"), [(3, True), (2, False), (1, False)])
def test_scores_of_rounds_that_are_trained_again_are_removed(first, stays, tmp_path):
    run = RunDirectory(tmp_path)
    run.write_client_scores(2, {0: {"accuracy": 0.5}})
    ClientScores().run_begins(SimpleNamespace(directory=run, first_round=first))
    assert (tmp_path / "client_scores.json").exists() == stays
    (tmp_path / "client_scores.json").write_text("{damaged")
    ClientScores().run_begins(SimpleNamespace(directory=run, first_round=first))


@pytest.mark.parametrize(("first", "lost"), [(1, False), (5, True), (8, False)])
def test_a_best_model_of_a_round_that_is_trained_again_is_said_to_be_lost(
    first, lost, monkeypatch, caplog
):
    kept = SimpleNamespace(server_round=7, accuracy=0.85)
    monkeypatch.setattr(best_model, "kept_best", lambda directory: kept)
    with caplog.at_level("WARNING", logger=best_model.__name__):
        best_model.BestModel().run_begins(SimpleNamespace(directory=None, first_round=first))
    assert ("round 7, which is trained again" in caplog.text) == lost
