"""Slow and malicious clients: how many epochs they train, and what they send."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from flwr.app import Message
from in_process import assert_same, differ, federate, settings, train_one, work

from clients.attacks import wrongly_labelled
from clients.base import LocalClient
from clients.update import Update
from fedapp.config.effect import without_effect
from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError
from fedapp.results import measures_file
from fedapp.runtime.process.client_roles import (
    attack,
    attackers,
    local_epochs,
    mean_epochs,
    slow_down,
)
from fedapp.runtime.process.context import ProcessContext
from strategies.rounds.records import UPLOADS, from_array_record

RUN = settings(method="fedavg", num_rounds=1, participation=1.0, partition="iid")


def config(**changes):
    return parse_config(settings(method="fedavg", **changes))


def uploads(**changes) -> dict[str, np.ndarray]:
    """Return the models that ten clients send in round 1, by "client/tensor"."""
    seen: dict[str, np.ndarray] = {}

    def watch(reply: Message) -> Message:
        if UPLOADS in reply.content:
            seen.update(from_array_record(reply.content.array_records[UPLOADS]))
        return reply

    federate({**RUN, "aggregation": "median", **changes}, tamper=watch)
    return seen


# -- slow clients ---------------------------------------------------------------------------------


def drawn(**changes) -> np.ndarray:
    some = config(local_epochs=5, **changes)
    return np.array([[local_epochs(some, c, r) for c in range(50)] for r in range(1, 41)])


def test_all_clients_train_all_epochs_by_default():
    assert (drawn() == 5).all()


def test_every_client_draws_its_epochs_where_all_are_slow():
    epochs = drawn(straggler_share=1.0, straggler_epochs=2)
    values, counts = np.unique(epochs, return_counts=True)
    assert values.tolist() == [2, 3, 4, 5]
    assert np.abs(counts / epochs.size - 0.25).max() < 0.04
    assert (epochs.std(axis=0) > 0.5).all()  # no client is always slow
    assert mean_epochs(config(local_epochs=5, straggler_share=1.0, straggler_epochs=2)) == 3.5


def test_a_share_of_the_clients_is_slow():
    epochs = drawn(straggler_share=0.5)
    assert abs((epochs == 5).mean() - 0.6) < 0.04  # a half, and a fifth of the slow ones
    assert abs(epochs.mean() - mean_epochs(config(local_epochs=5, straggler_share=0.5))) < 0.1
    assert not np.array_equal(epochs, drawn(straggler_share=0.5, seed=1))


def test_slow_clients_take_fewer_steps_with_the_same_bits_on_any_number_of_nodes():
    run = {**RUN, "local-epochs": 4, "straggler-share": 1.0, "num-rounds": 2, "method": "fednova"}
    final, strategy, _ = federate(run, nodes=3)
    some = parse_config(run)
    for result in strategy.report.results:
        batches = -(-result.examples // 50)
        assert result.steps == batches * local_epochs(some, result.client, 2)
    assert len({result.steps for result in strategy.report.results}) > 2
    assert_same(final, federate(run, nodes=10, seed=3)[0])


@pytest.mark.parametrize("method", ["pfedme", "ditto", "apfl", "fedrep", "fedkd", "centralised"])
def test_clients_with_loops_of_their_own_are_slow_in_training_only(method, monkeypatch):
    run = settings(method=method, local_epochs=3, straggler_share=1.0, participation=1.0)
    seen: dict[str, set[int]] = {"work": set(), "evaluate": set()}
    for name in seen:
        original = getattr(LocalClient, name)

        def watched(self, *args, name=name, original=original):
            seen[name].add(self.settings.epochs)
            return original(self, *args)

        monkeypatch.setattr(LocalClient, name, watched)
    some, (_, strategy, _) = parse_config({**run, "client-eval-every": 1}), federate(run)
    drawn = {local_epochs(some, c, r) for c in range(some.num_clients) for r in (1, 2)}
    assert seen["work"] == drawn
    assert seen["evaluate"] <= {3}
    if method == "pfedme":
        for result in strategy.report.results:
            batches = -(-result.examples // 50)
            epochs = local_epochs(some, result.client, 2)
            assert result.steps == batches * epochs * run["pfedme-steps"]


def test_a_client_class_may_have_settings_of_its_own(monkeypatch):
    process = ProcessContext(parse_config({**RUN, "straggler-share": 1.0, "local-epochs": 3}))
    client = process.client(0, server_round=1)
    client.settings = replace(client.settings, momentum=0.25, epochs=1)
    slow_down(process.config, client, 1)
    assert (client.settings.momentum, client.settings.epochs) == (0.25, 1)


def test_measures_follow_slow_and_malicious_clients_as_they_were_in_the_run(tmp_path):
    run = train_one(
        tmp_path, num_rounds=1, partition="iid", local_epochs=3, straggler_share=1.0, attackers=1,
        analyses="local-training drift", checkpoint_every=0,
    )  # fmt: skip
    found = measures_file.read(run)[0]["measures"]
    local, drift = found["local-training"], found["drift"]
    some = parse_config(run.config())
    epochs = [local_epochs(some, client, 1) for client in range(4)]
    assert len(set(epochs)) > 1
    assert [each["client"] for each in local["clients"]] == [0, 1, 2, 3]
    for each, count in zip(local["clients"], epochs, strict=True):
        assert {each[f"test_{e}"] for e in range(count, 4)} == {each["test_3"]}
    accuracy = run.rounds()[-1]["accuracy"]
    assert local["model"]["mean_3"] == pytest.approx(accuracy, abs=0.01)
    assert drift


def test_slow_clients_cannot_train_more_epochs_than_the_others():
    with pytest.raises(UserError, match="'straggler-epochs' is 3 but must be at most local-epochs"):
        config(straggler_share=0.5, straggler_epochs=3, local_epochs=2)
    assert "straggler-share has" in without_effect(["straggler-share"], config(local_epochs=1))
    assert "straggler-epochs has no effect" in without_effect(["straggler-epochs"], config())


# -- malicious clients ----------------------------------------------------------------------------


def test_attackers_are_drawn_from_the_seed():
    some = config(num_clients=100, shards=1, attackers=10)
    assert len(attackers(some)) == 10
    assert attackers(some) <= set(range(100))
    assert attackers(some) != attackers(config(num_clients=100, shards=1, attackers=10, seed=1))
    assert attackers(config()) == frozenset()


def test_an_attacker_sends_its_update_with_the_opposite_sign():
    honest, bad = uploads(), uploads(attackers=3, **{"attack-scale": 2.0})
    shared = ProcessContext(parse_config(RUN)).slot.shared
    initial = {name: tensor.detach().numpy() for name, tensor in shared.items()}
    chosen = attackers(parse_config({**RUN, "attackers": 3}))
    for key, sent in bad.items():
        client, name = key.split("/", 1)
        start = initial[name]
        scale = -2.0 if int(client) in chosen else 1.0
        np.testing.assert_allclose(sent - start, scale * (honest[key] - start), atol=1e-6)


def test_an_attacker_sends_noise_as_large_as_its_update():
    received = {"large": np.ones((300, 100), np.float32), "count": np.zeros(3, np.float32)}
    step = np.random.default_rng(0).normal(2e-3, 1e-3, (300, 100)).astype(np.float32)
    some = config(attackers=1, attack="noise", attack_scale=3.0)
    bad = SimpleNamespace(client=next(iter(attackers(some))), trained={"large": None})
    rounds = []
    for server_round in (1, 2):
        shared = {"large": received["large"] + step, "count": np.full(3, 7, np.float32)}
        update = Update(shared, None, 10)
        assert attack(some, attackers(some), bad, received, update, server_round)
        rounds.append(update.shared["large"] - received["large"])
        np.testing.assert_array_equal(update.shared["count"], 7)  # a buffer
        assert update.shared["large"].dtype == np.float32
        assert update.squared_distance == pytest.approx(9 * np.sum(step**2), rel=0.02)
    sizes = [np.sqrt(np.mean(np.square(noise, dtype=float))) for noise in rounds]
    np.testing.assert_allclose(sizes, 3 * np.sqrt(5e-6), rtol=0.02)
    for one, other in ((rounds[0], step), (rounds[0], rounds[1])):
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.03


def test_an_attacker_trains_on_labels_in_reverse_order():
    process = ProcessContext(parse_config({**RUN, "attackers": 2, "attack": "label-flip"}))
    honest = ProcessContext(parse_config(RUN))
    for client in range(10):
        bad = client in attackers(process.config)
        ours, true = process.data.client(client, 1), honest.data.client(client, 1)
        for kind in ("training", "tuning"):
            pairs = zip(getattr(ours, kind)(1)(), getattr(true, kind)(1)(), strict=True)
            for (images, labels), (same, right) in pairs:
                assert torch.equal(images, same)
                assert torch.equal(labels, 9 - right if bad else right)
        counts = torch.bincount(torch.cat([y for _, y in ours.examples(1)]), minlength=10)
        own = torch.cat([y for _, y in process.data.own_images(client)])
        assert torch.equal(counts, torch.bincount(own, minlength=10))
        assert torch.equal(counts, ours.class_counts.long())
        assert torch.equal(counts, ours.all_counts.long())
        test, tested = (torch.cat([y for _, y in d.test()]) for d in (ours, true))
        assert torch.equal(test, tested)


def test_each_epoch_of_an_attacker_has_new_batches():
    data = ProcessContext(parse_config(RUN)).data.client(0)
    epoch = wrongly_labelled(data).training(1)
    first, second = (torch.cat([labels for _, labels in epoch()]) for _ in range(2))
    assert not torch.equal(first, second)
    assert torch.equal(first.sort().values, second.sort().values)


@pytest.mark.parametrize("name", ["noise", "label-flip"])
def test_attacks_give_the_same_bits_on_any_number_of_nodes(name):
    run = {**RUN, "attackers": 2, "attack": name, "num-rounds": 2}
    final = federate(run, nodes=3)[0]
    assert_same(final, federate(run, nodes=10, seed=3)[0])
    assert differ(final, federate({**RUN, "num-rounds": 2})[0])


def test_a_median_withstands_what_ruins_the_mean():
    run = {**RUN, "num-rounds": 8, "local-epochs": 3, "attackers": 3, "attack-scale": 3.0}
    process = ProcessContext(parse_config(run))

    def accuracy(**changes) -> float:
        final = federate({**run, **changes})[0]
        client = process.client(0)
        client.set_parameters(list(final.values()))
        hits = [client.model(x)[1].argmax(1) == y for x, y in process.data.test_batches()]
        return float(torch.cat(hits).float().mean())

    assert accuracy() < 0.3
    assert accuracy(aggregation="median") > 0.6


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"attackers": 10}, "'attackers' is 10 but must be less than num-clients"),
        ({"attackers": 1, "method": "fedproto"}, "set it to 'label-flip'"),
        ({"attackers": 1, "method": "fednova"}, "set it to 'label-flip'"),
        ({"attackers": 9, "secure-aggregation": "pairwise"}, "can read that client's update"),
        ({"attackers": 1, "attack": "backdoor"}, "attack"),
    ],
)
def test_attacks_that_cannot_be_made_are_refused(changes, sentence):
    with pytest.raises(UserError, match=sentence):
        parse_config({**settings(method="fedavg"), **changes})


@pytest.mark.parametrize("method", ["fedproto", "fedlc", "scaffold", "fedper"])
def test_every_kind_of_method_trains_with_wrong_labels(method):
    run = settings(method=method, attackers=2, attack="label-flip", participation=1.0)
    process = ProcessContext(parse_config(run))
    assert np.isfinite(work(process.client(0)).training.loss)
    attacked, honest = federate(run)[1].report, federate({**run, "attackers": 0})[1].report
    losses = [[result.loss for result in report.results] for report in (attacked, honest)]
    assert len(losses[0]) == 10
    assert losses[0] != losses[1]


def test_keys_of_attacks_have_an_effect_only_with_attackers():
    keys = ["attack", "attack-scale"]
    assert without_effect(keys, config()).startswith("attack, attack-scale have no effect")
    assert not without_effect(keys, config(attackers=1))
    assert "attack-scale" in without_effect(keys, config(attackers=1, attack="label-flip"))
