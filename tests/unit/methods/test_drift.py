"""FedNova, FedDyn and FedCurv: test vectors, neutral settings and special cases."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from in_process import assert_same, differ, federate, settings, work
from reference import VECTORS
from small_clients import VectorClient, strategy_of

from clients.fedcurv import IMPORTANCE, OF, WEIGHTED, FedCurvClient
from clients.feddyn import FedDynClient
from clients.fednova import FedNovaClient
from clients.training.local_training import LocalSettings
from fedapp.config.resolve import parse_config
from fedapp.methods.table import METHODS
from fedapp.runtime.process.context import ProcessContext
from strategies.aggregate import UpdateRefused, weighted_mean
from strategies.fedcurv import FedCurv
from strategies.feddyn import FedDyn
from strategies.fednova import FedNova
from strategies.rounds.records import ClientResult

SERVER = VECTORS["server"]
RUN = {"lr": 0.05, "lr_schedule": "constant", "batch_size": 48}


def results_of(steps, sizes):
    return [
        ClientResult(i, n, 1, 0.0, 0.0, 0, 0.0, each)
        for i, (n, each) in enumerate(zip(sizes, steps, strict=True))
    ]


def test_fednova_equals_the_vector():
    case = SERVER["FedNova"]
    momentum = replace(LocalSettings(1), momentum=case["rho"])
    sent, effective = [], []
    for steps, after in zip(case["tau_i"], SERVER["w_i"], strict=True):
        client = VectorClient(FedNovaClient, SERVER["w0"], settings=momentum, correction="none")
        update = client.finish(after, steps=steps, lr=0.1)
        sent.append(update.shared)
        effective.append(update.effective_steps)
    assert effective == pytest.approx(case["a_i"], rel=1e-12)
    strategy = strategy_of(FedNova, epochs=1, momentum=case["rho"])
    strategy.report.results = results_of(effective, SERVER["n_i"])
    mean = weighted_mean(sent, SERVER["n_i"])
    after = strategy.server_update({"w": np.array(SERVER["w0"])}, mean)["w"]
    np.testing.assert_allclose(after, case["w_new"], rtol=1e-6)


def test_fednova_is_fedavg_when_all_take_as_many_steps():
    """Up to rounding: it divides each update by a_i and multiplies the mean by it again."""
    run = {**RUN, "batch_size": 50}
    nova, strategy, _ = federate(settings(method="fednova", **run))
    assert len({result.steps for result in strategy.report.results}) == 1
    avg = federate(settings(method="fedavg", **run))[0]
    for name, array in avg.items():
        np.testing.assert_allclose(nova[name], array, rtol=0, atol=1e-6)


def test_fednova_differs_from_fedavg_when_steps_differ():
    run = settings(method="fednova", partition="lda", alpha=0.5, num_rounds=1, **RUN)
    nova, strategy, _ = federate(run)
    assert len({result.steps for result in strategy.report.results}) > 1
    avg = federate({**run, "method": "fedavg"})[0]
    assert any(np.abs(nova[name] - array).max() > 1e-3 for name, array in avg.items())


OWN = {"fednova_correction": "own"}
ACCUMULATE = {"fedcurv_accumulate": True}


def test_fednovas_own_correction_is_the_mean_gradient_of_the_last_training():
    """SGD with momentum and a constant gradient g, four steps: first g is kept, then g - g = 0."""
    momentum = replace(LocalSettings(1), momentum=0.9)
    g, lr, steps, state = np.array([0.5, -1.0, 2.0]), 0.1, 4, None
    for expected in (g, 0 * g, g):
        client = VectorClient(
            FedNovaClient, SERVER["w0"], state=state, settings=momentum, correction="own"
        )
        corrected = client.gradient(g)
        np.testing.assert_allclose(corrected, expected, rtol=1e-5, atol=1e-5)
        speed, after = np.zeros(3), np.array(SERVER["w0"])
        for _ in range(steps):
            speed = 0.9 * speed + corrected
            after = after - lr * speed
        state = client.finish(after, steps=steps, lr=lr).state
        np.testing.assert_allclose(state["w"], expected, rtol=1e-5, atol=1e-5)


def test_fednova_with_its_own_correction_differs_where_a_client_comes_back():
    """Equal numbers of steps make plain FedNova FedAvg, but not the corrected one."""
    run = {**RUN, "batch_size": 50, "participation": 1.0}
    plain, own = (federate(settings(method="fednova", **run, **k))[2] for k in ({}, OWN))
    assert_same(plain[0], own[0])
    assert max(np.abs(own[1][name] - array).max() for name, array in plain[1].items()) > 1e-3


def test_plain_fednova_keeps_nothing():
    run = settings(method="fednova", **RUN)
    plain, own = (
        ProcessContext(parse_config({**run, "fednova-correction": c})) for c in ("none", "own")
    )
    assert (plain.keeps, own.keeps) == ("", "mean gradient")
    client = plain.client(3)
    assert not work(client).state
    assert client.state_bytes() == 0


@pytest.mark.parametrize("steps", [0.0, -1.0, 200.1])
def test_fednova_refuses_impossible_numbers_of_steps(steps):
    """Two epochs over ten examples in batches of one, and momentum 0.9: no more than 200."""
    with pytest.raises(UpdateRefused, match=rf"steps is {steps:g}, not in \(0, 200\]"):
        strategy_of(FedNova, epochs=2, momentum=0.9).add_reply(
            None, None, results_of([steps], [10])
        )


def test_feddyn_server_equals_the_vector():
    case = SERVER["FedDyn_alpha0.1_N10"]
    assert METHODS["feddyn"].fixed == {"weights": "uniform"}
    strategy = strategy_of(FedDyn, clients=10, alpha=0.1, weights="uniform")
    strategy.load_state({"w": np.array(case["h"])})
    strategy.report.results = results_of([0, 0, 0], SERVER["n_i"])
    mean = weighted_mean([{"w": np.array(w)} for w in SERVER["w_i"]], [1, 1, 1])
    after = strategy.server_update({"w": np.array(SERVER["w0"])}, mean)["w"]
    np.testing.assert_allclose(strategy.state()["w"], case["h_new"], rtol=1e-9)
    np.testing.assert_allclose(after, case["w_new_uniform"], rtol=1e-9)


def gradient_of(penalty, w):
    """The penalty's value at w and its gradient by autograd."""
    point = torch.tensor(w, dtype=torch.float64, requires_grad=True)
    value = penalty(point)
    value.backward()
    return value.item(), point.grad.numpy()


def test_feddyn_step_has_the_gradient_of_the_vectors_penalty():
    case = SERVER["FedDyn_local_penalty"]
    own, anchor = (torch.tensor(case[key], dtype=torch.float64) for key in ("g_i", "w_global"))
    value, gradient = gradient_of(
        lambda w: -(own * w).sum() + case["alpha"] / 2 * ((w - anchor) ** 2).sum(), case["w"]
    )
    assert value == pytest.approx(case["value"])
    client = VectorClient(FedDynClient, case["w_global"], state={"w": case["g_i"]},
                          alpha=case["alpha"])  # fmt: skip
    with torch.no_grad():
        client.w.copy_(torch.tensor(case["w"]))
    of_loss = np.array([0.5, -1.0, 2.0])
    np.testing.assert_allclose(client.gradient(of_loss), of_loss + gradient, rtol=1e-5)
    update = client.finish(case["w"], steps=1, lr=0.1)
    np.testing.assert_allclose(update.state["w"], case["g_i_new"], rtol=1e-6)


def test_feddyn_first_step_of_round_one_is_fedavgs():
    """w = w_g and g_i = 0: both terms have no gradient yet."""
    client = VectorClient(FedDynClient, SERVER["w0"], alpha=0.1)
    np.testing.assert_array_equal(client.gradient([1.0, 2.0, -1.0]), [1.0, 2.0, -1.0])


def fedcurv_client(w, **options):
    plain = {"weight": 1.0, "samples": 500, "per_sample": False, "accumulate": False}
    return VectorClient(FedCurvClient, w, **{**plain, **options})


def curvature_client(case, **more):
    u, v = (np.sum(case[key], axis=0) for key in "uv")
    sums = {IMPORTANCE: {"w": u}, WEIGHTED: {"w": v}, OF: {"clients": [0, 1, 2]}}
    return fedcurv_client(case["w"], **{"weight": case["lam"], "extras": sums, **more})


def test_fedcurv_step_has_the_gradient_of_the_vectors_penalty_of_the_others():
    case = SERVER["FedCurv"]
    u, v = (torch.tensor(case[key], dtype=torch.float64)[1:].sum(0) for key in "uv")
    value, gradient = gradient_of(
        lambda w: case["lam"] * ((u * w**2).sum() - 2 * (v * w).sum()), case["w"]
    )
    assert value == pytest.approx(case["penalty"])
    of_loss, own = np.array([0.5, -1.0, 2.0]), {"u/w": case["u"][0], "v/w": case["v"][0]}
    took_part = curvature_client(case, state=own).gradient(of_loss)
    np.testing.assert_allclose(took_part, of_loss + gradient, rtol=1e-5)
    sums = {IMPORTANCE: {"w": u.numpy()}, WEIGHTED: {"w": v.numpy()}, OF: {"clients": [1, 2]}}
    absent = curvature_client(case, state=own, extras=sums)  # an older state is not taken out
    np.testing.assert_allclose(absent.gradient(of_loss), of_loss + gradient, rtol=1e-5)
    weaker = curvature_client(case, state=own, weight=0.3 * case["lam"]).gradient(of_loss)
    np.testing.assert_allclose(weaker, of_loss + 0.3 * gradient, rtol=1e-5)


def test_fedcurv_without_weight_is_fedavg_bit_for_bit():
    parent = federate(settings(method="fedavg", **RUN))[0]
    assert_same(federate(settings(method="fedcurv", fedcurv_lambda=0.0, **RUN))[0], parent)
    assert differ(federate(settings(method="fedcurv", **RUN))[0], parent)


def test_fedcurv_round_one_is_fedavgs_bit_for_bit():
    one, other = (federate(settings(method=m, **RUN))[2] for m in ("fedcurv", "fedavg"))
    assert_same(one[0], other[0])


def test_fedcurv_importance_is_the_mean_squared_mini_batch_gradient():
    process = ProcessContext(parse_config(settings(method="fedcurv", fedcurv_samples=60, **RUN)))
    client = process.client(3)
    update = work(client)
    batches = list(client.data.training(1)())[:2]  # 2 x 48 examples are the first 60 or more
    squares = []
    for inputs, labels in batches:
        client.model.zero_grad()
        torch.nn.functional.cross_entropy(client.model(inputs)[1], labels).backward()
        squares.append(client.model.head.weight.grad.numpy() ** 2)
    expected = np.mean(squares, axis=0)
    u = update.groups[IMPORTANCE]["head.weight"]
    np.testing.assert_allclose(u, expected, rtol=1e-5, atol=1e-12)
    weight = client.model.head.weight.detach().numpy()
    np.testing.assert_array_equal(update.groups[WEIGHTED]["head.weight"], u * weight)


@pytest.mark.parametrize("bn", ["", "batch", "group"])
def test_fedcurv_importance_can_be_the_mean_squared_gradient_of_examples(bn):
    """Without BatchNorm an example's gradient is its own; with it the batch's others matter."""
    keys = {**RUN, "batch_size": 5, "fedcurv_samples": 6, "fedcurv_per_sample": True}
    keys |= {"model": "resnet10", "bn": bn, "num_clients": 100} if bn else {}
    client = ProcessContext(parse_config(settings(method="fedcurv", **keys))).client(3)
    client.server_round = 1
    client.prepare(1)
    u = client.importance()["head.weight"]
    squares = []
    for inputs, labels in list(client.data.training(1)())[:2]:  # 5 + 5 are the first 6 or more
        for i in range(len(labels)):
            client.model.zero_grad()
            part = slice(None) if bn == "batch" else slice(i, i + 1)
            logits = client.model(inputs[part])[1][i if bn == "batch" else 0]
            torch.nn.functional.cross_entropy(logits, labels[i]).backward()
            squares.append(client.model.head.weight.grad.numpy() ** 2)
    assert len(squares) == 10
    np.testing.assert_allclose(u, np.mean(squares, axis=0), rtol=1e-4, atol=1e-10)


def sums_and_states(run):
    """Return a strategy after its last round, and the final states by client."""
    strategy = federate(run, state_key="run")[1]
    process = ProcessContext(parse_config(run))
    later = run["num-rounds"] + 1
    states = {c: process.memory(c, "run", later).load() for c in range(run["num-clients"])}
    return strategy, {client: state for client, state in states.items() if state}


def assert_sums(strategy, states, rtol):
    """Assert that the server's sums are those of these clients' u and u w."""
    assert strategy.state()[f"{OF}/clients"].tolist() == sorted(states)
    for kind, group in (("u", IMPORTANCE), ("v", WEIGHTED)):
        for name in strategy.trained:
            expected = sum(own[f"{kind}/{name}"].astype(np.float64) for own in states.values())
            summed = strategy.state()[f"{group}/{name}"]
            np.testing.assert_allclose(summed, expected, rtol=rtol, atol=1e-7 * summed.max())


def test_fedcurv_sums_what_the_rounds_clients_sent():
    strategy, states = sums_and_states(settings(method="fedcurv", **{**RUN, "num_rounds": 1}))
    assert isinstance(strategy, FedCurv)
    assert len(states) == 5
    assert_sums(strategy, states, 1e-5)


def test_fedcurv_can_sum_the_latest_importance_of_every_client_so_far():
    """Includes clients outside the last cohort, and counts clients of several rounds once."""
    run = settings(method="fedcurv", **{**RUN, **ACCUMULATE, "num_rounds": 4})
    strategy, states = sums_and_states(run)
    trained = [result.client for result in strategy.report.results]
    assert len(states) > len(trained) == 5
    assert_sums(strategy, states, 1e-4)
    one_node = federate(run, nodes=1)[1].state()
    assert_same(one_node, strategy.state())


def test_fedcurv_accumulated_differs_from_round_three_on():
    """Until then all clients so far are those of the last round."""
    run = {**RUN, "num_rounds": 3}
    last, every = (federate(settings(method="fedcurv", **run, **k))[2] for k in ({}, ACCUMULATE))
    assert_same(last[1], every[1])
    assert differ(last[2], every[2])


@pytest.mark.parametrize(
    ("counted", "options", "sent"),
    [([0, 1], {"accumulate": True}, 1.5), ([1], {"accumulate": True}, 2.0), ([0, 1], {}, 2.0)],
)
def test_fedcurv_sends_the_change_of_what_the_accumulated_sums_have(
    monkeypatch, counted, options, sent
):
    """A client whose first reply was lost has a state but is in no sum."""
    monkeypatch.setattr(FedCurvClient, "importance", lambda self: {"w": np.full(1, 2.0, "f4")})
    sums = {IMPORTANCE: {"w": [4.0]}, WEIGHTED: {"w": [4.0]}, OF: {"clients": counted}}
    client = fedcurv_client([1.0], state={"u/w": [0.5], "v/w": [0.5]}, extras=sums, **options)
    update = client.finish([3.0], steps=1, lr=0.1)
    assert update.groups[IMPORTANCE]["w"] == sent
    assert update.groups[WEIGHTED]["w"] == 6.0 - (2.0 - sent)
    assert (update.state["u/w"], update.state["v/w"]) == (2.0, 6.0)
