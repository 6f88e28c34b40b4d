"""FedAdagrad, FedYogi and FedAdam: three rounds by hand, and where they are FedAvg."""

import math

import numpy as np
import pytest
from in_process import differ, federate, settings

from strategies.fedopt import FedOpt, adagrad, adam, yogi
from strategies.rounds.federation import Federation

RULES = {"fedadagrad": adagrad, "fedyogi": yogi, "fedadam": adam}
ETA, TAU, BETA1, BETA2 = 0.1, 0.5, 0.9, 0.99


def build(rule, beta1=BETA1, beta2=BETA2, lr=ETA, tau=TAU):
    federation = Federation({0: 0, 1: 0}, {})
    return FedOpt(
        federation, lambda r: [], lambda r: 0.1, ["w"], weights="uniform",
        second_moment=rule, server_lr=lr, tau=tau, beta1=beta1, beta2=beta2,
    )  # fmt: skip


def by_hand(name, start, means):
    """Reddi et al., algorithm 2, for one number."""
    value, first, second = start, 0.0, TAU**2
    for mean in means:
        delta = mean - value
        first = BETA1 * first + (1 - BETA1) * delta
        if name == "fedadagrad":
            second = second + delta**2
        elif name == "fedyogi":
            second = second - (1 - BETA2) * delta**2 * np.sign(second - delta**2)
        else:
            second = BETA2 * second + (1 - BETA2) * delta**2
        value = value + ETA * first / (math.sqrt(second) + TAU)
    return value


@pytest.mark.parametrize("name", RULES)
def test_three_rounds_are_the_algorithm(name):
    start, means = [1.0, -2.0], [[3.0, -2.5], [0.2, -2.1], [1.4, 5.0]]
    strategy, model = build(RULES[name]), {"w": np.array(start)}
    for mean in means:
        model = strategy.server_update(model, {"w": np.array(mean), "buffer": np.array([4.0])})
        assert model["buffer"] == 4.0  # buffers are averaged
    expected = [by_hand(name, start[i], [mean[i] for mean in means]) for i in range(2)]
    np.testing.assert_allclose(model["w"], expected, rtol=1e-12)


@pytest.mark.parametrize("name", RULES)
def test_a_restored_server_goes_on_as_if_never_stopped(name):
    first, restored, fresh = (build(RULES[name]) for _ in range(3))
    model = first.server_update({"w": np.zeros(3)}, {"w": np.array([1.0, -2.0, 0.5])})
    restored.restore(first.save())
    mean = {"w": np.array([2.0, 0.0, -1.0])}
    ends = [each.server_update(model, mean)["w"] for each in (first, restored, fresh)]
    np.testing.assert_array_equal(ends[0], ends[1])
    assert not np.array_equal(ends[0], ends[2])


@pytest.mark.parametrize("name", RULES)
def test_without_decay_and_with_a_large_tau_it_is_fedavg(name):
    """eta / (sqrt(v) + tau) with v = tau^2 is 1 for eta = 2 tau."""
    strategy = build(RULES[name], beta1=0.0, beta2=1.0, lr=2e6, tau=1e6)
    after = strategy.server_update({"w": np.array([1.0, 2.0])}, {"w": np.array([3.0, -4.0])})["w"]
    np.testing.assert_allclose(after, [3.0, -4.0], rtol=1e-9)


@pytest.mark.parametrize("name", RULES)
def test_its_keys_change_the_model(name):
    run = {"method": name, "num_rounds": 2}
    plain = federate(settings(**run))[0]
    assert differ(plain, federate(settings(**run, **{"fedopt_server_lr": 0.02}))[0])
    assert differ(plain, federate(settings(**run, **{"fedopt_tau": 0.1}))[0])
    if name != "fedadagrad":
        assert differ(plain, federate(settings(**run, **{"fedopt_beta1": 0.5}))[0])
        assert differ(plain, federate(settings(**run, **{"fedopt_beta2": 0.5}))[0])
