"""Accuracies on the clients' own test splits: whom they count, and what a failure does to a run."""

import math
import re

import pytest
from flwr.app import MetricRecord, RecordDict
from in_process import ROOT, settings

from clients.base import LocalClient
from clients.personal_part import PersonalPartClient
from clients.state.store import ClientState
from fedapp.config.resolve import parse_config
from fedapp.engines.in_process import run_in_process
from fedapp.engines.resources import Resources
from fedapp.results.outcome import best_round
from fedapp.results.run_directory import RunDirectory
from fedapp.runtime.process.context import ProcessContext
from strategies.rounds.client_evaluation import read_scores, summarise_clients
from strategies.rounds.records import DIVERGED, REPORT

HERE = {"output_dir": "", "run_name": "run", "participation": 1.0, "num_rounds": 3}


def row(accuracy, examples, loss=1.0):
    return {"accuracy": accuracy, "examples": float(examples), "loss": loss}


def test_clients_without_test_images_have_no_accuracy():
    found = summarise_clients({0: row(0.8, 30), 1: row(0.0, 0, 0.0), 2: row(0.6, 10)})
    assert found["client_count"] == 2
    assert found["client_accuracy_mean"] == pytest.approx(0.7)
    assert found["client_accuracy_total"] == pytest.approx(0.75)
    assert found["client_loss_mean"] == 1.0
    assert (found["client_worst"], found["client_accuracy_worst"]) == (2, 0.6)
    assert summarise_clients({1: row(0.0, 0)}) == {}


def test_a_further_score_that_is_not_finite_leaves_the_accuracy():
    found = summarise_clients({0: {**row(0.8, 30), "f": 1.0}, 1: {**row(0.2, 30), "f": math.inf}})
    assert found["client_accuracy_total"] == pytest.approx(0.5)
    assert found["client_f_total"] == 1.0
    assert "client_f_total" not in summarise_clients({1: {**row(0.2, 30), "f": math.nan}})


def test_a_personal_model_of_nan_has_no_accuracy_and_is_named(tmp_path, monkeypatch):
    """The largest of ten NaN is at class 0, whose images it would seem to classify correctly."""
    personalise = PersonalPartClient.personalise

    def diverged(self, server_round, lr):
        personalise(self, server_round, lr)
        if self.client == 3:
            self.model.get_parameter("head.weight").data.fill_(math.nan)

    monkeypatch.setattr(PersonalPartClient, "personalise", diverged)
    config = settings(method="fedper", **{**HERE, "output_dir": str(tmp_path)})
    assert run_in_process(ROOT, config, Resources()) == 0
    for found in RunDirectory.load(tmp_path / "run").rounds():
        assert (found["client_count"], found["unevaluated"]) == (9, [3])
        failures = ["client 3: the loss of its model is nan on its test images"]
        assert found["evaluation_failures"] == failures


@pytest.mark.parametrize(("accuracy", "loss"), [(0.1, math.nan), (0.1, math.inf), (math.nan, 1.0)])
def test_the_server_takes_no_accuracy_beside_a_loss_that_is_not_finite(accuracy, loss):
    columns = {
        "client": [0, 1],
        "accuracy": [0.5, accuracy],
        "examples": [3, 3],
        "loss": [1.0, loss],
    }
    scores, failures = read_scores(RecordDict({REPORT: MetricRecord(columns)}), [0, 1])
    assert list(scores) == [0]
    assert [(failure.client, failure.kind) for failure in failures] == [(1, DIVERGED)]


def test_the_best_round_is_one_with_all_clients():
    rows = [
        {"round": 1, "accuracy": 0.5},
        {"round": 2, "accuracy": 0.9, "unevaluated": [3]},
        {"round": 3, "accuracy": None},
        {"round": 4, "accuracy": 0.6},
    ]
    assert best_round(rows)["round"] == 4
    assert best_round(rows[1:3])["round"] == 2
    assert best_round(rows[2:3]) == {}


@pytest.fixture
def fails_in_round_two(monkeypatch):
    """Let the evaluation of client 3 fail in round 2, while the list that it gives has 3."""
    evaluate, broken_clients = LocalClient.evaluate, [3]

    def broken(self, parameters, config):
        if self.client in broken_clients and config["server_round"] == 2:
            raise RuntimeError("no memory left")
        return evaluate(self, parameters, config)

    monkeypatch.setattr(LocalClient, "evaluate", broken)
    return broken_clients


def test_an_evaluation_that_fails_ends_the_run_and_its_round_is_kept(
    tmp_path, fails_in_round_two, capsys
):
    config = settings(method="fedper", **{**HERE, "output_dir": str(tmp_path)})
    assert run_in_process(ROOT, config, Resources()) == 1
    said = capsys.readouterr().out
    assert re.search("client 3 failed in round 2: .*no memory left", said, re.DOTALL)
    run = RunDirectory.load(tmp_path / "run")
    assert run.summary()["status"] == "failed"
    assert [row.get("unevaluated") for row in run.rounds()] == [None, [3]]
    assert (run.path / "model.safetensors").is_file()


def test_the_same_command_again_repeats_a_round_whose_evaluation_failed(
    tmp_path, fails_in_round_two
):
    changes = {**HERE, "num_rounds": 2, "checkpoint_every": 1, "resume": "auto"}
    config = settings(method="fedper", **{**changes, "output_dir": str(tmp_path)})
    assert run_in_process(ROOT, config, Resources()) == 1
    assert run_in_process(ROOT, config, Resources()) == 1, "it fails again, not completes"
    assert RunDirectory.load(tmp_path / "run").summary()["status"] == "failed"
    fails_in_round_two.clear()
    assert run_in_process(ROOT, config, Resources()) == 0
    run = RunDirectory.load(tmp_path / "run")
    assert run.summary()["status"] == "completed"
    assert [row["client_count"] for row in run.rounds()] == [10, 10]
    plain = {**config, "run-name": "plain", "resume": ""}
    assert run_in_process(ROOT, plain, Resources()) == 0
    ours, theirs = (tmp_path / name / "model.safetensors" for name in ("run", "plain"))
    assert ours.read_bytes() == theirs.read_bytes()


def test_evaluating_the_global_model_reads_no_states(tmp_path, monkeypatch):
    loads = []
    load = ClientState.load

    def counted(state, *rounds):
        loads.append(state)
        return load(state, *rounds)

    monkeypatch.setattr(ClientState, "load", counted)
    changes = {**HERE, "output_dir": str(tmp_path), "num_rounds": 2, "client_eval_every": 1}
    assert run_in_process(ROOT, settings(method="scaffold", **changes), Resources()) == 0
    assert len(loads) == 20  # to train in two rounds; fedper's clients need theirs to be tested too
    run = RunDirectory.load(tmp_path / "run")
    assert not any("client_reinitialised" in row for row in run.rounds())


def test_a_tolerant_run_goes_on_and_says_who_was_not_evaluated(tmp_path, fails_in_round_two):
    changes = {**HERE, "output_dir": str(tmp_path), "tolerate_failures": True}
    assert run_in_process(ROOT, settings(method="fedper", **changes), Resources()) == 0
    run = RunDirectory.load(tmp_path / "run")
    assert [row["client_count"] for row in run.rounds()] == [10, 9, 10]
    assert [row.get("unevaluated") for row in run.rounds()] == [None, [3], None]
    assert run.summary()["best_round"] != 2


def test_a_client_whose_lost_state_is_evaluated_afresh_is_counted(tmp_path, monkeypatch):
    changes = {**HERE, "output_dir": str(tmp_path), "state_missing": "reinit"}
    monkeypatch.setattr(ClientState, "load", lambda state, *rounds: None)
    assert run_in_process(ROOT, settings(method="fedper", **changes), Resources()) == 0
    rounds = RunDirectory.load(tmp_path / "run").rounds()
    assert [row["client_reinitialised"] for row in rounds] == [10, 10, 10]


@pytest.mark.parametrize(("method", "batches"), [("fedrep", 1), ("scaffold", 1), ("feddor", 0)])
def test_a_single_image_is_a_batch_unless_networks_are_the_clients_own(method, batches):
    own = {"partition": "dirichlet", "num_clients": 4} if method == "feddor" else {}
    node = ProcessContext(parse_config(settings(method=method, drop_last=True, **own)))
    node.data.partition.train[0] = node.data.partition.train[0][:1]
    assert len(list(node.client(0).data.training(1)())) == batches


def test_a_score_that_only_some_clients_tell_is_left_out_on_any_number_of_nodes(
    monkeypatch, tmp_path
):
    scores, found = LocalClient.scores, []

    def some_more(self):
        return scores(self) | ({"calibration": 0.1} if self.client else {})

    monkeypatch.setattr(LocalClient, "scores", some_more)
    for nodes in (1, 5):
        changes = {**HERE, "output_dir": str(tmp_path / str(nodes)), "client_eval_every": 1}
        values = settings(method="fedavg", **{**changes, "num_rounds": 1})
        assert run_in_process(ROOT, values, Resources(nodes)) == 0
        run = RunDirectory.load(tmp_path / str(nodes) / "run")
        found.append({k: v for k, v in run.rounds()[0].items() if k.startswith("client_acc")})
    assert found[0] == found[1]
    assert found[0]["client_accuracy_mean"] > 0
