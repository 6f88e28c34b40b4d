"""Rounds without a model, clients without an evaluation: what the run keeps and reports."""

import itertools
import logging

import pytest
from flwr.app import RecordDict
from in_process import ROOT, ShuffledGrid, assert_same, federate, settings
from safetensors.numpy import load_file

from clients.base import LocalClient
from fedapp import server_app
from fedapp.core.errors import UserError
from fedapp.engines.in_process import run_in_process
from fedapp.engines.resources import Resources
from fedapp.results.run_directory import RunDirectory
from fedapp.runtime.node import identity
from strategies.fedavg import FedAvg
from strategies.rounds import base
from strategies.rounds.report import RoundDiverged

METHODS = ["fedavgm", "feddyn", "scaffold", "fedexp", "fedcurv", "fedtgp", "fedorgp", "fedgen"]
CLIENTS = {"num_clients": 5, "participation": 1.0, "num_rounds": 3}


def diverge_in_round(monkeypatch, number):
    """Let the model of a round have values that are not finite."""

    def check(arrays, server_round):
        if server_round == number:
            raise RoundDiverged(f"round {server_round} gave a model with non-finite values")

    monkeypatch.setattr(base, "check_finite", check)


@pytest.mark.parametrize("method", METHODS)
def test_a_round_without_a_model_leaves_the_servers_state_as_it_was(method, monkeypatch):
    saved = []
    heterogeneous = method in ("fedtgp", "fedorgp", "fedgen")
    kind = {"partition": "dirichlet", "local_epochs": 1} if heterogeneous else {}
    config = settings(method=method, **CLIENTS, **kind)
    diverge_in_round(monkeypatch, 2)

    def keep(strategy):
        saved.append((strategy, strategy.save()))

    with pytest.raises(RuntimeError, match="round 2 gave a model"):
        federate(config, nodes=2, after_round=keep)
    [(strategy, after_first)] = saved
    assert_same(after_first, strategy.save())
    assert strategy.newest.server_round == 1


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (lambda mean: {}, r"returned arrays in round 1 .+: 'extractor.+' is missing"),
        (lambda mean: None, "returned None in round 1, but must return the next model"),
        (lambda mean: {**mean, "more": mean["head.bias"]}, "'more' is unexpected"),
        (
            lambda mean: {**mean, "head.bias": mean["head.bias"][:1]},
            r"'head.bias' has shape \(1,\) instead of",
        ),
    ],
)
def test_a_rule_that_gives_another_model_ends_the_run_in_one_sentence(rule, message, monkeypatch):
    monkeypatch.setattr(FedAvg, "server_update", lambda self, received, mean: rule(mean))
    with pytest.raises(RuntimeError, match=message):
        federate(settings(method="fedavg", **CLIENTS))


@pytest.mark.parametrize("nodes", [1, 10])
def test_a_client_that_sends_another_model_has_a_mistake_and_has_not_diverged(nodes, monkeypatch):
    work = LocalClient.work

    def without_bias(self, *args):
        update = work(self, *args)
        del update.shared["head.bias"]
        return update

    monkeypatch.setattr(LocalClient, "work", without_bias)
    sentence = r"failed in round 1: its update is not of the form .*: 'head.bias' is missing"
    with pytest.raises(RuntimeError, match=sentence) as ended:
        federate(settings(method="fedavg"), nodes=nodes)
    assert not isinstance(ended.value, RoundDiverged)


def test_the_model_of_a_run_that_diverges_is_that_of_its_last_round(tmp_path, monkeypatch):
    config = settings(method="fedexp", output_dir=str(tmp_path), **CLIENTS)
    whole = {**config, "run-name": "whole", "num-rounds": 1}
    assert run_in_process(ROOT, whole, Resources()) == 0
    diverge_in_round(monkeypatch, 2)
    assert run_in_process(ROOT, {**config, "run-name": "ended"}, Resources()) == 1
    models = [load_file(tmp_path / name / "model.safetensors") for name in ("whole", "ended")]
    assert_same(*models)


def test_a_client_that_trained_and_was_not_evaluated_is_no_failed_client(tmp_path, monkeypatch):
    evaluate = LocalClient.evaluate

    def infinite(self, parameters, config):
        loss, count, scores = evaluate(self, parameters, config)
        return (float("inf") if self.client in (1, 3) else loss), count, scores

    monkeypatch.setattr(LocalClient, "evaluate", infinite)
    config = settings(
        method="fedavg", output_dir=str(tmp_path), run_name="run", client_eval_every=1, **CLIENTS
    )
    reason = "a score of its evaluation is not finite"
    for nodes in (1, 3):
        run_in_process(ROOT, {**config, "run-name": f"{nodes}"}, Resources(nodes=nodes))
        for row in RunDirectory.load(tmp_path / f"{nodes}").rounds():
            assert (row["clients"], row["failed"], row["failures"]) == (5, 0, [])
            assert row["evaluation_failures"] == [f"client {c}: {reason}" for c in (1, 3)]


def test_a_failure_names_its_node_where_there_are_several_hosts(tmp_path, monkeypatch, caplog):
    """It changes no bit of the model, and nothing where all nodes are on one host."""

    def lose(reply):
        if reply.metadata.message_type == "train" and reply.metadata.src_node_id == 101:
            reply.content = RecordDict()
        return reply

    def train(name, **changes):
        values = settings(
            output_dir=str(tmp_path), run_name=name, method="fedavg", participation=1.0,
            **{"num_rounds": 1, "num_clients": 4, "shards": 5, **changes},
        )  # fmt: skip
        server_app.run(ShuffledGrid(values, 2, tamper=lose), values, "", 0.0)
        return RunDirectory.load(tmp_path / name)

    one = train("one", tolerate_failures=True)
    hosts = itertools.cycle(["a", "b"])
    monkeypatch.setattr(identity.platform, "node", lambda: next(hosts))
    with caplog.at_level(logging.WARNING):
        two = train("two", tolerate_failures=True)
    assert [text.partition(": ")[0] for text in one.rounds()[0]["failures"]] == [
        "client 1",
        "client 3",
    ]
    named = [f"client {client} on node 101 (partition 1 of 2)" for client in (1, 3)]
    assert [text.partition(": ")[0] for text in two.rounds()[0]["failures"]] == named
    assert all(f"  {name}: what its node sent was refused" in caplog.text for name in named)
    assert_same(load_file(one.model_path), load_file(two.model_path))
    with pytest.raises(UserError, match=r"^client 1 on node 101 \(partition 1 of 2\) failed in r"):
        train("strict")
