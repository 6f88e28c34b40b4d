"""Server updates against independent vectors, and their properties."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from in_process import assert_same, federate, settings
from reference import VECTORS
from small_clients import strategy_of

from strategies.aggregate import weighted_mean
from strategies.fedavgm import FedAvgM
from strategies.feddyn import FedDyn
from strategies.fedexp import FedExP
from strategies.rounds.federation import Federation
from strategies.rounds.records import ClientResult
from strategies.rounds.report import RoundReport

SERVER = VECTORS["server"]


OPTIONS = {
    FedExP: {"epsilon": 1e-3, "step": "paper", "evaluate": "average"},
    FedAvgM: {"beta": 0.7},
}


def build(kind, weights="uniform", clients=0, **options):
    federation = Federation(dict.fromkeys(range(clients), 0), {})
    options = {**OPTIONS[kind], **options}
    return kind(federation, lambda r: [], lambda r: 0.1, ["w"], weights=weights, **options)


def extrapolate(before, models, sizes, weights, epsilon=1e-3, clients=3, **options):
    """Let FedExP take one step from `before` [d] with client models [n, d]; returns eta and w."""
    strategy = build(FedExP, weights, clients, epsilon=epsilon, **options)
    before, models = np.array(before), np.array(models)
    strategy.report.results = [
        ClientResult(i, n, 1, 0.0, 0.0, 0, float(np.sum((model - before) ** 2)))
        for i, (n, model) in enumerate(zip(sizes, models, strict=True))
    ]
    counts = sizes if weights == "size" else [1] * len(sizes)
    mean = weighted_mean([{"w": model} for model in models], counts)
    after = strategy.server_update({"w": before}, mean)["w"]
    return strategy.report.metrics["step_length"], after


@pytest.mark.parametrize(
    ("weights", "step", "key"),
    [
        ("uniform", "paper", "FedExP_uniform_eps1e-3"),
        ("size", "paper", "FedExP_sizeweighted_default"),
        ("size", "authors", "FedExP_sizeweighted_official_eps_times_M"),
    ],
)
def test_fedexp_equals_the_vectors(weights, step, key):
    eta, after = extrapolate(SERVER["w0"], SERVER["w_i"], SERVER["n_i"], weights, step=step)
    assert eta == pytest.approx(SERVER[key]["eta_g"], rel=1e-9)
    np.testing.assert_allclose(after, SERVER[key]["w_new"], rtol=1e-9)


def test_fedexp_second_vector():
    case = SERVER["FedExP_case2"]
    eta, after = extrapolate(SERVER["w0"], case["w_i"], [1, 1, 1], "uniform")
    assert eta == pytest.approx(case["eta_g"], rel=1e-9)
    np.testing.assert_allclose(after, case["w_new"], rtol=1e-9)


@given(st.integers(3, 12), st.integers(0, 100))
def test_fedexp_step_is_one_for_equal_updates_and_half_the_cohort_for_orthogonal_ones(
    clients, seed
):
    update = np.random.default_rng(seed).normal(size=clients)
    equal, after = extrapolate(np.zeros(clients), [update] * clients, [1] * clients, "uniform")
    assert equal == 1.0
    np.testing.assert_allclose(after, update, rtol=1e-9)
    orthogonal, _ = extrapolate(np.zeros(clients), np.eye(clients), [1] * clients, "uniform", 1e-12)
    assert orthogonal == pytest.approx(clients / 2)


def test_fedexp_of_feddr_plus_never_goes_farther_than_the_mean():
    """Nine orthogonal updates would be 1.5 long; of twelve clients each adds epsilon to |D| = 1."""
    nine = [1] * 9
    far, after = extrapolate(np.zeros(9), 2 * np.eye(9), nine, "uniform", 1e-12, step="feddr+")
    assert far == 1.0
    np.testing.assert_allclose(after, np.full(9, 2 / 9))
    start, models = np.zeros(4), 2 * np.eye(4)
    short, after = extrapolate(start, models, [1, 1, 1, 5], "uniform", 0.25, 12, step="feddr+")
    assert short == pytest.approx(2 / (2 * (1 + 12 * 0.25)))
    np.testing.assert_allclose(after, np.full(4, 0.5 * short))
    equal, _ = extrapolate(start, [models[0]] * 4, [1] * 4, "uniform", 1e-12, step="feddr+")
    assert equal == pytest.approx(0.5)


def test_fedavgm_equals_the_vector():
    case = SERVER["FedAvgM_beta0.7_uniform"]
    strategy = build(FedAvgM)
    strategy.load_state({"w": np.array(case["m"])})
    mean = weighted_mean([{"w": np.array(w)} for w in SERVER["w_i"]], [1, 1, 1])
    after = strategy.server_update({"w": np.array(SERVER["w0"])}, mean)["w"]
    np.testing.assert_allclose(strategy.state()["w"], case["m_new"], rtol=1e-9)
    np.testing.assert_allclose(after, case["w_new"], rtol=1e-9)


def test_nesterovs_momentum_looks_one_step_ahead():
    plain, ahead = build(FedAvgM), build(FedAvgM, nesterov=True)
    w = {"w": np.zeros(1)}
    for number, moved in ((1, 1.7), (2, 1.0 + 0.7 * 1.7)):  # D + beta m, with m = 1 and 1.7
        mean = {"w": w["w"] - 1.0}
        after = ahead.server_update(w, mean)
        assert w["w"] - after["w"] == pytest.approx(moved)
        assert w["w"] - plain.server_update(w, mean)["w"] == pytest.approx([1.0, 1.7][number - 1])
        w = after


def test_feddyns_h_goes_on_from_the_round_before():
    case = SERVER["FedDyn_alpha0.1_N10"]
    strategy = strategy_of(FedDyn, clients=10, alpha=0.1, weights="uniform")
    strategy.load_state({"w": np.array([0.2, -0.1, 0.3])})
    strategy.report.results = [ClientResult(c, 1, 0, 0.0, 0.0, 0, 0.0) for c in range(3)]
    mean = {"w": np.mean(SERVER["w_i"], axis=0)}
    after = strategy.server_update({"w": np.array(SERVER["w0"])}, dict(mean))["w"]
    h = np.array([0.2, -0.1, 0.3]) + np.array(case["h_new"]) - np.array(case["h"])
    np.testing.assert_allclose(strategy.state()["w"], h, rtol=1e-9)
    np.testing.assert_allclose(after, mean["w"] - h / 0.1, rtol=1e-9)


def test_feddyn_can_evaluate_the_mean_of_the_rounds_models():
    run = settings(method="feddyn", num_rounds=3)
    final, strategy, _ = federate({**run, "feddyn-evaluate": "mean"})
    assert_same(final, federate(run)[0])
    tested, before = strategy.model_to_evaluate(final), strategy.kept
    assert any(not np.array_equal(tested[name], final[name]) for name in before)
    for name, h in before.items():
        np.testing.assert_allclose(tested[name], final[name] + h / 0.1, rtol=1e-5, atol=1e-6)
    assert_same(federate(run)[1].model_to_evaluate(final), final)


@pytest.mark.parametrize("kind", [FedExP, FedAvgM])
def test_server_state_survives_a_restart(kind):
    """Two updates equal one update, a new strategy that restores what was saved, and one more."""
    start, means = np.zeros(3), np.array([[1.0, 2.0, -1.0], [3.0, 1.0, 0.5]])

    def update(strategy, received, mean):
        squares = 9 * float(np.sum((mean - received) ** 2))
        strategy.report.results = [ClientResult(0, 1, 1, 0.0, 0.0, 0, squares)]
        strategy.server_round = 2
        return strategy.server_update({"w": received}, {"w": mean})["w"]

    first, restored, new = (build(kind) for _ in range(3))
    between = update(first, start, means[0])
    restored.restore(first.save())
    ends = [
        (strategy.model_to_evaluate({"w": between})["w"], update(strategy, between, means[1]))
        for strategy in (first, restored, new)
    ]
    np.testing.assert_array_equal(ends[1], ends[0], strict=True)
    assert not np.array_equal(ends[2], ends[0])


def test_fedexp_evaluates_the_average_of_the_last_two_models():
    final, strategy, history = federate(settings(method="fedexp", num_rounds=3))
    for name, array in strategy.model_to_evaluate(final).items():
        expected = (history[-1][name].astype(np.float64) + history[-2][name]) / 2
        np.testing.assert_array_equal(array, expected.astype(np.float32))


def test_fedexps_first_model_is_not_averaged_with_the_initial_one():
    final, strategy, _ = federate(settings(method="fedexp", num_rounds=1))
    assert_same(strategy.model_to_evaluate(final), final)


def test_fedexp_can_evaluate_the_last_model_and_trains_the_same():
    run = settings(method="fedexp", num_rounds=2)
    average, _, _ = federate(run)
    final, strategy, _ = federate({**run, "fedexp-evaluate": "last"})
    assert_same(final, average)
    assert_same(strategy.model_to_evaluate(final), final)


def test_a_client_without_a_step_has_no_part_in_the_mean_training_loss():
    report = RoundReport(
        1, [ClientResult(0, 30, 2, 1.5, 0.0, 0, 0.0), ClientResult(1, 10, 0, 0.0, 0.0, 0, 0.0)]
    )
    assert report.train_loss == 1.5
    assert np.isnan(RoundReport(1, report.results[1:]).train_loss)
