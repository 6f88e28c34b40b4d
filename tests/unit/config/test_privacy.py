"""The privacy budget against closed forms, a published bound and the library's own orders."""

import math

import dp_accounting
import pytest
from dp_accounting.rdp import RdpAccountant
from in_process import settings

from fedapp.config.checks import check_new_run
from fedapp.config.privacy import Budget, _divergences
from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError

PRIVATE = {"method": "fedavg", "weights": "uniform", "dp_clip": 1.0, "num_clients": 100}


def test_one_round_of_all_clients_has_the_divergence_of_a_gaussian_of_half_the_noise():
    """Replacing a client moves the sum by two norms: alpha / (2 (z / 2)^2) at order alpha."""
    assert _divergences(2.0, 5, 5)[1] == pytest.approx(2 / (2 * 1.0**2))
    assert _divergences(6.0, 5, 5)[5] == pytest.approx(4 / (2 * 3.0**2))


@pytest.mark.parametrize(("noise", "rounds"), [(4.0, 20), (10.0, 5), (30.0, 200)])
def test_all_clients_lie_between_the_exact_gaussian_and_the_first_bound_on_it(noise, rounds):
    """Mironov 2017, proposition 3: T / (2 m^2) + sqrt(2 T log(1 / delta)) / m, with m = z / 2."""
    found = Budget(noise, 10, 10, 1e-5).epsilon(rounds)
    m = noise / 2
    assert found <= rounds / (2 * m**2) + math.sqrt(2 * rounds * math.log(1e5)) / m
    assert found >= dp_accounting.get_epsilon_gaussian(m / math.sqrt(rounds), 1e-5)


@pytest.mark.parametrize(
    ("noise", "clients", "cohort", "rounds"),
    [(1.0, 100, 10, 200), (4.0, 100, 10, 200), (20.0, 100, 10, 200), (4.0, 1000, 50, 1500)],
)
def test_sampling_is_counted_as_by_the_librarys_own_orders(noise, clients, cohort, rounds):
    release = dp_accounting.SampledWithoutReplacementDpEvent(
        clients - 1, cohort, dp_accounting.GaussianDpEvent(noise / 2)
    )
    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    expected = RdpAccountant(neighboring_relation=relation).compose(release, rounds)
    found = Budget(noise, clients, cohort, 1e-5).epsilon(rounds)
    assert expected.get_epsilon(1e-5) <= found * (1 + 1e-9)
    assert found == pytest.approx(expected.get_epsilon(1e-5), rel=0.01)


def by_hand(order: int, share: float, m: float) -> float:
    """Wang et al. 2019, theorem 9, for a Gaussian whose divergence at order j is j / (2 m^2)."""
    e2 = 2 / (2 * m**2)
    second = math.comb(order, 2) * min(4 * math.expm1(e2), 2 * math.exp(e2))
    total = 1 + share**2 * second
    for j in range(3, order + 1):
        total += 2 * share**j * math.comb(order, j) * math.exp((j - 1) * j / (2 * m**2))
    return math.log(total) / (order - 1)


@pytest.mark.parametrize("place", [1, 3, 5, 9])
def test_sampling_costs_no_more_than_the_published_bound_and_less_than_none(place):
    order = {1: 2, 3: 3, 5: 4, 9: 8}[place]
    found = _divergences(6.0, 100, 10)[place]
    assert 0 < found <= by_hand(order, 10 / 99, 3.0) * (1 + 1e-9)
    assert found < _divergences(6.0, 100, 100)[place]


@pytest.mark.parametrize("cohort", [30, 50, 80, 98])
def test_a_large_cohort_costs_no_more_than_all_clients(cohort):
    """The bound for sampling alone would count more than twice as much for 98 of 100."""
    sampled, everyone = (Budget(10.0, 100, size, 1e-5).epsilon(100) for size in (cohort, 100))
    assert sampled <= everyone
    keys = {"num_rounds": 100, "dp_epsilon": 8.0}
    parsed = [parse_config(settings(**PRIVATE, **keys, participation=p)) for p in (0.98, 1.0)]
    assert parsed[0].dp_noise <= parsed[1].dp_noise


def test_a_budget_affords_the_rounds_below_its_limit_and_no_more():
    budget = Budget(4.0, 100, 10, 1e-5, limit=8.0)
    rounds = budget.affordable(1000)
    assert budget.epsilon(rounds) <= 8.0 < budget.epsilon(rounds + 1)
    assert budget.affordable(rounds) == rounds
    assert budget.affordable(5) == 5
    assert Budget(4.0, 100, 10, 1e-5).affordable(1000) == 1000
    assert budget.epsilon(0) == 0.0
    assert Budget(0.1, 10, 10, 1e-5, limit=1.0).affordable(3) == 0


@pytest.mark.parametrize(
    ("epsilon", "delta", "share", "rounds", "noise"),
    [(8.0, 1e-5, 0.1, 200, 4.018), (50.0, 1e-5, 1.0, 5, 0.709), (8.0, 1e-3, 0.1, 200, 3.352)],
)
def test_auto_finds_the_least_noise_for_all_rounds(epsilon, delta, share, rounds, noise):
    keys = {"participation": share, "num_rounds": rounds, "dp_epsilon": epsilon, "dp_delta": delta}
    budget = Budget.of(parse_config(settings(**PRIVATE, **keys)))
    exact, less = (Budget(budget.noise - d, 100, budget.cohort, delta) for d in (0.0, 0.001))
    assert budget.epsilon(rounds) == exact.epsilon(rounds) <= epsilon < less.epsilon(rounds)
    assert budget.noise == noise


def test_without_a_limit_there_is_no_noise():
    assert parse_config(settings(**PRIVATE)).dp_noise == 0.0
    assert Budget.of(parse_config(settings(**PRIVATE))) is None


def test_a_client_knows_that_it_took_part():
    """Of three clients two take part: each knows the other two's sum, so no sampling hides them."""
    assert Budget(4.0, 3, 2, 1e-5).epsilon(5) == Budget(4.0, 3, 3, 1e-5).epsilon(5)
    assert Budget(4.0, 4, 2, 1e-5).epsilon(5) < Budget(4.0, 4, 4, 1e-5).epsilon(5)


def test_a_robust_rule_has_no_budget():
    config = settings(**PRIVATE, aggregation="median", dp_noise=1.0)
    assert Budget.of(parse_config(config)) is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dp_clip": 0.0, "dp_epsilon": 8.0}, "dp-epsilon is 8 but dp-clip is 0"),
        ({"dp_epsilon": 8.0, "dp_noise": 0.0}, "but dp-noise is 0: set it to 'auto'"),
        ({"dp_epsilon": 8.0, "aggregation": "median"}, "aggregation is 'median': set it to 'mean'"),
        ({"dp_noise": 1.0, "dp_delta": 0.01}, "dp-delta is 0.01 but must be below .* = 0.01"),
        ({"dp_noise": 1.0, "analyses": "forgetting norms"}, "measure 'norms' shows local models"),
        ({"dp_delta": 0.0}, "'dp-delta' is 0.0 but must be greater than 0"),
    ],
)
def test_what_cannot_be_counted_is_refused(changes, words):
    with pytest.raises(UserError, match=words):
        parse_config(settings(**{**PRIVATE, **changes}))


@pytest.mark.parametrize(
    ("changes", "chosen"),
    [
        ({"dataset": "images", "data_dir": "/x", "dp_noise": 1.0}, "symmetric"),
        ({"dataset": "images", "data_dir": "/x", "dp_epsilon": 8.0}, "symmetric"),
        ({"dataset": "images", "data_dir": "/x"}, "dataset"),
        ({"dataset": "tiny-imagenet", "dp_noise": 1.0, "bn": "batch"}, "symmetric"),
        ({"dataset": "cifar10", "dp_noise": 1.0}, "dataset"),
        ({"dp_noise": 1.0}, "dataset"),
    ],
)
def test_with_noise_images_are_not_normalised_by_numbers_of_all_clients_images(changes, chosen):
    assert parse_config(settings(**{**PRIVATE, **changes})).normalisation == chosen


@pytest.mark.parametrize("partition", ["own", "folders"])
def test_images_of_each_host_are_never_normalised_by_all_clients_images(partition):
    keys = {**PRIVATE, "dataset": "images", "data_dir": "/x", "dp_noise": 1.0, "classes": "a b"}
    check_new_run(parse_config(settings(**keys, partition=partition, normalisation="dataset")))


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        (
            {**PRIVATE, "dataset": "images", "data_dir": "/x", "normalisation": "dataset"},
            "mean and deviation of all clients' .* dp-noise does not hide; set it to 'symmetric'",
        ),
        ({"method": "fednova", "regulariser": "prox"}, "does not count the pull of 'prox'"),
        ({"method": "ifca", "regulariser": "moon"}, "'moon': a client's previous model may be"),
    ],
)
def test_what_a_finished_run_of_an_earlier_version_did_is_refused_for_new_ones_only(keys, sentence):
    noise = {"dp_noise": 1.0} if "dp_clip" in keys else {}
    config = parse_config(settings(**keys, **noise))
    with pytest.raises(UserError, match=sentence):
        check_new_run(config)
