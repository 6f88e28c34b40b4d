"""Robust means and differential privacy: what they withstand, and what they refuse to go with."""

import numpy as np
import pytest
from flwr.app import Message
from in_process import break_client, differ, federate, settings

from clients.training.local_training import LossDiverged
from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError
from fedapp.engines.local_grid import set_task_ids
from strategies.rounds.records import TASK, UPLOADS, Task, from_array_record, to_array_record
from strategies.rounds.report import RoundFailed
from strategies.rounds.robust import Rule, SeparateModels

RUN = settings(method="fedavg", num_rounds=1, participation=1.0, weights="uniform")
ROBUST = ["median", "trimmed-mean", "krum", "multi-krum"]


def lie(reply: Message) -> Message:
    """Let the clients of node 101 send a model that is far away but not impossible."""
    if reply.metadata.src_node_id == 101 and UPLOADS in reply.content:
        arrays = from_array_record(reply.content.array_records[UPLOADS])
        reply.content[UPLOADS] = to_array_record({n: a + 50 for n, a in arrays.items()})
    return reply


@pytest.mark.parametrize("rule", ROBUST)
def test_one_lying_client_of_ten_moves_a_robust_mean_little(rule):
    run = {**RUN, "aggregation": rule, "robust-malicious": 1}
    honest = federate(run, nodes=10)[0]
    attacked = federate(run, nodes=10, tamper=lie)[0]
    for name, array in honest.items():
        assert np.max(np.abs(attacked[name] - array)) < 1.0, name


def combined(rule: Rule, received: dict, models: list[dict]) -> dict:
    set_task_ids()  # Flower's messages need it
    separate = SeparateModels(received, len(models))
    for client, model in enumerate(models):
        separate.add({client: model}, {client: 1})
    return rule.combine(1, received, separate)


def test_krum_compares_arrays_by_name_not_by_their_order_in_a_reply():
    """A flat vector in the sender's order would look like the received model, exactly."""
    random = np.random.default_rng(0)
    received = {"one": np.zeros(20, np.float32), "two": np.full(20, 3, np.float32)}
    honest = [
        {name: a + random.normal(0, 0.1, 20).astype(np.float32) for name, a in received.items()}
        for _ in range(4)
    ]
    exchanged = {"two": received["one"], "one": received["two"]}
    chosen = combined(Rule("krum", malicious=1), received, [*honest, exchanged])
    assert any(np.array_equal(chosen["one"], model["one"]) for model in honest)


def test_krum_sees_updates_that_are_small_beside_the_model():
    """Squared distances of the models themselves would cancel in float32."""
    random = np.random.default_rng(0)
    received = {"a": random.normal(0, 10, 10_000).astype(np.float32)}
    direction = random.normal(0, 3e-5, 10_000)
    updates = [direction + random.normal(0, 3e-5, 10_000) for _ in range(8)] + [-4 * direction] * 2
    models = [{"a": (received["a"] + update).astype(np.float32)} for update in updates]
    chosen = combined(Rule("krum", malicious=2), received, models)["a"]
    assert any(np.array_equal(chosen, model["a"]) for model in models[:8])


@pytest.mark.parametrize(("lost", "usable"), [(2, 8), (3, 7), (4, 6)])
def test_krum_ends_a_run_that_has_lost_too_many_clients(lost, usable, monkeypatch):
    """With two liars it needs seven models; with fewer Flower's goes on, and protects nothing."""
    break_client(monkeypatch, set(range(lost)), LossDiverged("nan"))
    run = {**RUN, "aggregation": "multi-krum", "robust-malicious": 2}
    if usable >= 7:
        assert len(federate(run)[1].report.results) == usable
        return
    with pytest.raises(RoundFailed, match=f"has {usable} usable updates, but .* 2 needs 7"):
        federate(run)


@pytest.mark.parametrize(
    ("trim", "fewest"), [(0.2, 5), (0.07, 15), (1 / 3, 3), (1 / 49, 50), (1e-9, 10**9)]
)
def test_a_trimmed_mean_needs_models_enough_to_remove_one_at_each_end(trim, fewest):
    assert Rule("trimmed-mean", trim=trim).fewest == fewest
    assert Rule("trimmed-mean", trim=5e-324).fewest > 2**52


def test_one_lying_client_of_ten_moves_the_mean_far():
    spoilt = {**RUN, "dp-clip": 1e6}  # the mean of separate models; nobody's update is so long
    honest, attacked = federate(spoilt, nodes=10)[0], federate(spoilt, nodes=10, tamper=lie)[0]
    assert all(np.max(np.abs(attacked[n] - array)) > 4.9 for n, array in honest.items())


@pytest.mark.parametrize("rule", ROBUST)
def test_nodes_and_reply_order_change_no_bit(rule):
    run = {**RUN, "aggregation": rule, "robust-malicious": 1}
    one = federate(run, nodes=3, seed=1)[0]
    assert not differ(one, federate(run, nodes=10, seed=2)[0])


def test_the_median_is_the_median_of_the_clients_models():
    models: dict[str, np.ndarray] = {}

    def watch(reply: Message) -> Message:
        if UPLOADS in reply.content:
            models.update(from_array_record(reply.content.array_records[UPLOADS]))
        return reply

    final = federate({**RUN, "aggregation": "median"}, nodes=3, tamper=watch)[0]
    for name, array in final.items():
        stacked = np.stack([models[f"{client}/{name}"] for client in range(10)]).astype(np.float64)
        np.testing.assert_array_equal(array, np.median(stacked, axis=0).astype(np.float32))


def test_clipping_bounds_the_step_of_the_model():
    initial = federate({**RUN, "lr": 1e-30})[0]
    clipped = federate({**RUN, "dp-clip": 0.01})[0]
    step = np.sqrt(sum(np.sum((clipped[n] - a) ** 2) for n, a in initial.items()))
    assert 0.001 < step <= 0.0101


def test_noise_is_added_and_does_not_come_from_the_seed():
    run = {**RUN, "dp-clip": 0.01, "dp-noise": 1.0}
    one, other = federate(run)[0], federate(run)[0]
    assert differ(one, other)
    initial = federate({**RUN, "lr": 1e-30})[0]
    added = np.concatenate([(one[n] - a).ravel() for n, a in initial.items()])
    assert np.std(added) == pytest.approx(1.0 * 0.01 / 10, rel=0.015)  # multiplier * clip / n


def test_a_missing_update_counts_as_zero_and_the_noise_stays(monkeypatch):
    """Otherwise one client could change the mean by more than the budget counts."""
    quiet = {**RUN, "dp-clip": 0.01, "tolerate-failures": True}
    initial = federate({**RUN, "lr": 1e-30})[0]

    def step(run):
        final = federate(run)[0]
        return np.concatenate([(final[n] - a).ravel() for n, a in initial.items()])

    all_ten = step(quiet)
    break_client(monkeypatch, {2, 3, 4, 5, 6}, RuntimeError("power cut"))
    five = step(quiet)
    assert np.linalg.norm(five) <= 0.01 * 5 / 10 * 1.001
    assert 0 < 10 * np.linalg.norm(all_ten - five) <= 0.01 * 5 * 1.001
    noisy = step({**quiet, "dp-noise": 1.0})
    assert np.std(noisy) == pytest.approx(1.0 * 0.01 / 10, rel=0.015)


@pytest.mark.parametrize(("share", "kept"), [(0.2, [1, 2, 30]), (0.4, [2])])
def test_trimmed_mean_removes_the_share_that_is_asked_for(share, kept):
    models = [{"w": np.array([value], np.float32)} for value in (-60.0, 1.0, 2.0, 30.0, 60.0)]
    rule = Rule("trimmed-mean", trim=share)
    found = combined(rule, {"w": np.zeros(1, np.float32)}, models)["w"]
    assert found[0] == pytest.approx(np.mean(kept))


def test_without_two_models_at_each_end_the_mean_of_five_is_their_median():
    run = {**RUN, "num-clients": 5}
    trimmed = federate({**run, "aggregation": "trimmed-mean", "robust-trim": 0.4})[0]
    assert not differ(trimmed, federate({**run, "aggregation": "median"})[0])
    assert differ(trimmed, federate({**run, "aggregation": "trimmed-mean"})[0])


def test_only_separate_tasks_send_separate_models():
    assert Task(1, (0,), 0.1, "size", 5).separate is False
    task = Task(1, (0, 1), 0.1, "size", 5, separate=True)
    assert Task.from_record(task.to_record()) == task
    assert TASK == "task"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": "scaffold", "aggregation": "median"}, "'scaffold' does more than that"),
        ({"method": "fedexp", "aggregation": "krum"}, "'fedexp' does more than that"),
        ({"aggregation": "multi-krum"}, "'multi-krum' with robust-malicious 0 averages all models"),
        (
            {"aggregation": "trimmed-mean", "num_clients": 20, "participation": 0.2},
            "'trimmed-mean' with robust-trim 0.2 needs at least 5 clients per round, but 4 are",
        ),
        (
            {"dp_clip": 1.0, "weights": "uniform", "bn": "running", "model": "resnet10"},
            "dp-clip shortens updates .* set bn to 'batch' or 'group'",
        ),
        ({"dp_clip": 1.0}, "set weights to 'uniform'"),
        ({"dp_noise": 1.0}, "dp-noise is 1 but dp-clip is 0"),
        (
            {"aggregation": "krum", "robust_malicious": 5, "participation": 1.0},
            "needs at least 13 clients per round, but 10 are sampled",
        ),
        (
            {"aggregation": "krum", "robust_malicious": 6, "num_clients": 100,
             "participation": 0.14},  # of 100: 14.000000000000002
            "needs at least 15 clients per round, but 14 are sampled",
        ),
    ],
)  # fmt: skip
def test_combinations_that_cannot_work_are_refused(changes, words):
    with pytest.raises(UserError, match=words):
        parse_config(settings(**{"method": "fedavg", **changes}))
