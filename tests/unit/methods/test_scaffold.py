"""SCAFFOLD: its vectors, its first round, and where its control variates go."""

from dataclasses import replace

import numpy as np
import pytest
from in_process import assert_same, differ, federate, settings
from reference import VECTORS
from small_clients import VectorClient, strategy_of

from clients.fedcurv import FedCurvClient
from clients.scaffold import CONTROL, ScaffoldClient
from clients.training.local_training import LocalSettings
from clients.training.sgd import effective_steps
from strategies.rounds.records import DIVERGED, ClientResult
from strategies.scaffold import Scaffold

SERVER = VECTORS["server"]
CASE = SERVER["SCAFFOLD"]


def test_the_corrected_gradient_and_the_movement_of_c_i_equal_the_vectors():
    client = VectorClient(ScaffoldClient, CASE["w0"], state={"w": CASE["c_i"]},
                          extras={CONTROL: {"w": CASE["c"]}})  # fmt: skip
    np.testing.assert_allclose(client.gradient(CASE["g"]), CASE["corrected_grad_for_g"], rtol=1e-6)
    update = client.finish(CASE["w_i"], steps=CASE["K"], lr=CASE["lr"])
    np.testing.assert_allclose(update.state["w"], CASE["c_i_plus"], rtol=1e-6)
    np.testing.assert_allclose(update.groups[CONTROL]["w"], CASE["delta_c"], rtol=1e-6)


def test_the_control_variate_of_a_client_counts_the_effective_steps_of_momentum():
    client = VectorClient(ScaffoldClient, CASE["w0"], state={"w": CASE["c_i"]},
                          extras={CONTROL: {"w": CASE["c"]}},
                          settings=LocalSettings(1, momentum=0.9))  # fmt: skip
    update = client.finish(CASE["w_i"], steps=CASE["K"], lr=CASE["lr"])
    moved = (np.array(CASE["w0"]) - CASE["w_i"]) / (CASE["K_eff_momentum0_9"] * CASE["lr"])
    expected = np.array(CASE["c_i"]) - CASE["c"] + moved
    np.testing.assert_allclose(update.state["w"], expected, rtol=1e-6)


def test_with_momentum_the_displacement_is_divided_by_the_effective_steps():
    assert effective_steps(CASE["K"], 0.0) == CASE["K"]
    assert effective_steps(CASE["K"], 0.9) == pytest.approx(CASE["K_eff_momentum0_9"], rel=1e-12)
    position, speed, steps = 0.0, 0.0, 7
    for _ in range(steps):
        speed = 0.9 * speed + 1.0
        position += speed
    assert effective_steps(steps, 0.9) == pytest.approx(position, rel=1e-12)


def test_a_parameter_without_a_gradient_gets_one_of_zeros():
    client = VectorClient(ScaffoldClient, CASE["w0"], state={"w": CASE["c_i"]},
                          extras={CONTROL: {"w": CASE["c"]}})  # fmt: skip
    for tensor in client.client.trained.values():
        tensor.grad = None
    assert [float(g.abs().sum()) for g in client.client.trained_gradients()] == [0.0]


def test_the_server_moves_c_by_the_share_of_the_clients_that_took_part():
    strategy = strategy_of(Scaffold, clients=10)
    strategy.load_state({"w": np.array(CASE["c"], np.float32)})
    strategy.report.results = [ClientResult(0, 10, 4, 0.0, 0.0, 0, 0.0)]
    strategy.use_means({CONTROL: {"w": np.array(CASE["delta_c"], np.float32)}})
    expected = CASE["c_new_with_delta_from_1_of_N10_clients"]
    np.testing.assert_allclose(strategy.state()["w"], expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("method", "parent"),
    [("scaffold", "fedavg"), ("scaffold+babu", "fedbabu"), ("scaffold+fn", "fedfn")],
)
def test_round_one_equals_the_parent_bit_for_bit_and_round_two_does_not(method, parent):
    same = {"lr": 0.05, "lr_schedule": "constant"}
    one, other = (federate(settings(method=name, **same))[2] for name in (method, parent))
    assert_same(one[0], other[0])
    assert differ(one[1], other[1])


def test_control_variates_of_a_frozen_head_do_not_exist():
    strategy = federate(settings(method="scaffold+babu"))[1]
    assert strategy.state().keys() == set(strategy.trained)
    assert not any(name.startswith("head.") for name in strategy.state())


def test_the_servers_c_is_the_mean_of_all_clients_c_i():
    """After every client has trained, c = 1/N sum c_i: the invariant of the algorithm."""
    from fedapp.config.resolve import parse_config
    from fedapp.runtime.process.context import ProcessContext

    run = settings(method="scaffold", num_rounds=4, lr=0.05, lr_schedule="constant")
    strategy = federate(run, state_key="run")[1]
    process = ProcessContext(parse_config(run))
    own = [process.memory(client, "run", 5).load() or {} for client in range(10)]
    assert 5 < sum(map(bool, own)) <= 10
    for name, c in strategy.state().items():
        mean = sum(state[name].astype(np.float64) for state in own if state) / 10
        np.testing.assert_allclose(c, mean, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(("method", "kind"), [("scaffold", ScaffoldClient),
                                              ("fedcurv", FedCurvClient)])  # fmt: skip
def test_large_values_beside_the_model_give_the_same_bits_on_any_number_of_nodes(
    method, kind, monkeypatch
):
    """A node's first client may send more than a sum without a reference expects (4)."""
    finish, largest = kind.finish, []

    def louder(self, received, update, lr):
        finish(self, received, update, lr)
        for arrays in update.groups.values():
            for name, array in arrays.items():
                peak = np.abs(array).max()
                arrays[name] = array * np.float32(100 / peak if self.client < 3 and peak else 1)
                largest.append(np.abs(arrays[name]).max())

    monkeypatch.setattr(kind, "finish", louder)
    run = settings(method=method, participation=1.0, lr=0.001, num_rounds=1)
    states = [federate(run, nodes=nodes)[1].state() for nodes in (10, 3, 1)]
    assert max(largest) > 50
    assert_same(states[0], states[1])
    assert_same(states[0], states[2])
    assert max(np.abs(array).max() for array in states[0].values()) > 10


def test_a_control_variate_that_is_not_finite_is_a_divergence(monkeypatch):
    finish = ScaffoldClient.finish

    def spoilt(self, received, update, lr):
        finish(self, received, update, lr)
        for array in update.groups[CONTROL].values():
            array += np.nan if self.client == 0 else 0

    monkeypatch.setattr(ScaffoldClient, "finish", spoilt)
    run = settings(method="scaffold", participation=1.0, num_rounds=1)
    strategy = federate(run)[1]
    assert [(f.client, f.kind) for f in strategy.report.failures] == [(0, DIVERGED)]


def test_traffic_is_the_model_and_c_each_way():
    _, scaffold, _ = federate(settings(method="scaffold"), nodes=10)
    _, fedavg, _ = federate(settings(method="fedavg"), nodes=10)
    sent = {s: sum(r.payload for r in s.report.results) for s in (scaffold, fedavg)}
    assert sent[scaffold] == 2 * sent[fedavg]
    assert 1.9 < scaffold.report.bytes_down / fedavg.report.bytes_down < 2.1


def test_weight_decay_and_momentum_act_on_the_corrected_gradient():
    """One step from a state: w - lr (g - c_i + c + decay w), not a correction after the decay."""
    client = VectorClient(ScaffoldClient, CASE["w0"], state={"w": CASE["c_i"]},
                          extras={CONTROL: {"w": CASE["c"]}},
                          settings=replace(LocalSettings(1), weight_decay=0.5))  # fmt: skip
    after = client.step(CASE["g"], lr=0.1)
    before = np.array(CASE["w0"])
    expected = before - 0.1 * (np.array(CASE["corrected_grad_for_g"]) + 0.5 * before)
    np.testing.assert_allclose(after, expected, rtol=1e-6)
