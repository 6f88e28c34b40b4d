"""FedKD that sends changes of the mentee: every client has the server's, and less is sent."""

import shutil

import numpy as np
from heterogeneous_runs import outcome, run
from in_process import assert_same, federate, train_one

from clients.fedkd import UPDATE, FedKDClient
from fedapp.config.resolve import parse_config
from fedapp.results import checkpoint
from strategies.fedkd import EXTRA, FedKD

SOME = {"method": "fedkd", "fedkd_sends": "updates", "participation": 0.5, "num_rounds": 5}


def test_every_client_trains_from_the_servers_mentee(monkeypatch):
    kinds, mentees = [], []
    of_server, of_client = FedKD.extras, FedKDClient.prepare

    def extras(strategy, clients):
        mentees.append(strategy.mentee)
        sent = of_server(strategy, clients)
        kinds.append((strategy.server_round, *sent))
        return sent

    def prepare(client, server_round):
        of_client(client, server_round)
        assert_same(client._received, mentees[-1])

    monkeypatch.setattr(FedKD, "extras", extras)
    monkeypatch.setattr(FedKDClient, "prepare", prepare)
    strategy = federate(run(**SOME), nodes=4)[1]
    assert strategy.report.failures == []
    assert all(kind == EXTRA for number, kind in kinds if number == 1)
    assert {kind for number, kind in kinds if number > 1} == {EXTRA, UPDATE}
    changed = [not np.array_equal(mentees[0][n], strategy.mentee[n]) for n in strategy.mentee]
    assert all(changed)


def test_the_number_of_nodes_changes_nothing():
    assert_same(outcome(run(**SOME), nodes=1)[0], outcome(run(**SOME), nodes=4)[0])


def test_changes_are_smaller_than_weights():
    keys = {"method": "fedkd", "num_rounds": 3, "feature_dim": "auto"}
    weights, updates = (
        federate(run(**keys, fedkd_sends=sends), nodes=4)[1].report
        for sends in ("weights", "updates")
    )
    assert updates.bytes_up < 0.6 * weights.bytes_up
    assert updates.bytes_down < 0.6 * weights.bytes_down


def test_a_resumed_run_equals_one_without_a_break(tmp_path):
    keys = {"partition": "dirichlet", "feature_dim": 16, "fedkd_energy_end": 0.95}
    keys |= {"method": "fedkd", "fedkd_sends": "updates", "keep_state": True}

    def mentee(directory):
        fingerprint = parse_config(directory.config()).fingerprint()
        return checkpoint.load(directory.path, fingerprint).strategy

    whole = train_one(tmp_path / "whole", num_rounds=4, **keys)
    train_one(tmp_path / "parts", num_rounds=2, **keys)
    parts = train_one(tmp_path / "parts", num_rounds=4, resume="auto", **keys)
    assert_same(mentee(parts), mentee(whole))


def test_clients_that_may_lose_their_state_always_get_the_whole_mentee(tmp_path):
    keys = {"method": "fedkd", "fedkd_sends": "updates", "state_dir": str(tmp_path)}

    def lose(strategy):
        shutil.rmtree(tmp_path)

    lost = run(**keys, num_rounds=3, state_missing="reinit")
    strategy = federate(lost, nodes=4, after_round=lose)[1]
    assert strategy.report.failures == []
    assert all(result.reinitialised for result in strategy.report.results)
    assert strategy.extras([0]).keys() == {EXTRA}


def test_truncated_as_in_htfllib_a_layer_without_a_smaller_rank_arrives_as_zero(monkeypatch):
    received = []
    prepare = FedKDClient.prepare

    def recorded(client, server_round):
        prepare(client, server_round)
        head = client.model.get_submodule("mentee").get_parameter("head.weight")
        received.append((server_round, bool(head.detach().any())))

    monkeypatch.setattr(FedKDClient, "prepare", recorded)
    keys = {"fedkd_energy_start": 0.9999, "fedkd_energy_end": 0.9999, "num_rounds": 2}
    strategy = federate(run(method="fedkd", fedkd_truncation="htfllib", **keys), nodes=4)[1]
    assert strategy.report.failures == []
    assert set(received) == {(1, True), (2, False)}
