"""Differential privacy under masks: nodes clip, and each adds its share of the noise."""

import math

import numpy as np
import pytest
from in_process import assert_same, break_client, federate, settings

from fedapp import server_app
from fedapp.config.privacy import Budget
from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError
from fedapp.engines.deployment.protections import protections
from fedapp.engines.in_process import InProcessGrid
from fedapp.results.run_directory import RunDirectory
from strategies.aggregate import ExactSum, UpdateRefused
from strategies.rounds.private import add_noise, clipped_for, largest_noise

pytestmark = pytest.mark.usefixtures("few_images")

CLIP, NOISE = 0.01, 3.0
KEYS = {"method": "fedavg", "weights": "uniform", "dp_clip": CLIP, "secure_aggregation": "pairwise"}
QUIET = settings(**KEYS, participation=1.0, num_rounds=1, tolerate_failures=True)
NOISY = {**QUIET, "dp-noise": NOISE}


def flat(model):
    return np.concatenate([array.ravel().astype(np.float64) for array in model.values()])


def test_without_noise_the_model_is_that_of_a_server_that_clips():
    trusted = {**QUIET, "secure-aggregation": "off", "num-rounds": 2}
    ours = federate({**QUIET, "num-rounds": 2}, nodes=5)[0]
    for name, array in federate(trusted, nodes=5)[0].items():
        np.testing.assert_allclose(ours[name], array, rtol=1e-6, atol=1e-7, err_msg=name)
    assert_same(ours, federate({**QUIET, "num-rounds": 2}, nodes=10, seed=3)[0])


@pytest.mark.parametrize(("lost", "parties"), [(set(), 5), ({2, 7}, 4)])
def test_the_noise_of_the_nodes_that_must_stay_is_that_of_the_budget(lost, parties, monkeypatch):
    """Of five nodes four must stay; with all five the variance is 5/4 of what is counted."""
    break_client(monkeypatch, lost, RuntimeError("power cut"))
    noise = flat(federate(NOISY, nodes=5)[0]) - flat(federate(QUIET, nodes=5)[0])
    expected = NOISE * CLIP / 10 * math.sqrt(parties / 4)
    assert len(noise) > 5000
    assert np.std(noise) == pytest.approx(expected, rel=0.04)
    assert abs(np.mean(noise)) < 5 * expected / math.sqrt(len(noise))


def test_a_lost_client_counts_as_an_update_of_zero(monkeypatch):
    """Whose other clients' node stays: the scale of the mean must not tell."""
    initial = flat(federate({**QUIET, "lr": 1e-30}, nodes=5)[0])
    all_ten = flat(federate(QUIET, nodes=5)[0]) - initial
    break_client(monkeypatch, {2}, RuntimeError("power cut"))
    nine = flat(federate(QUIET, nodes=5)[0]) - initial
    missing = 10 * np.linalg.norm(all_ten - nine)
    assert missing == pytest.approx(CLIP, rel=1e-3)  # the update of client 2, as it was clipped


def test_reports_tell_nothing_that_depends_on_the_images():
    _, strategy, _ = federate(NOISY, nodes=5)
    for result in strategy.report.results:
        assert (result.loss, result.steps, result.squared_distance) == (0.0, 0, 0.0)
        assert result.images > 0
    assert math.isnan(strategy.report.train_loss)
    assert federate(QUIET, nodes=5)[1].report.train_loss > 0


def test_every_round_counts_as_if_all_clients_took_part(tmp_path, pictures, caplog):
    values = settings(**KEYS, dp_noise=20.0, output_dir=str(tmp_path), run_name="one")
    with pictures():
        server_app.run(InProcessGrid(values, 5), values, "", 0.0)
    run = RunDirectory.load(tmp_path / "one")
    budget = Budget(20.0, 10, 10, 1e-5)
    assert [row["epsilon"] for row in run.rounds()] == [budget.epsilon(1), budget.epsilon(2)]
    assert [row["train_loss"] for row in run.rounds()] == [None, None]
    assert "train loss      -" in caplog.text
    assert run.privacy() == {"releases": 2, "noise": 20.0, "clients": 10, "cohort": 10}
    found = {each.name: each.found for each in protections(parse_config(values))}
    assert "the nodes add it" in found["differential privacy"]


def test_the_noise_that_a_budget_needs_counts_no_sampling():
    keys = {**KEYS, "dp_epsilon": 20.0, "num_clients": 100, "participation": 0.1}
    hidden = parse_config(settings(**keys)).dp_noise
    trusted = {**keys, "secure_aggregation": "off"}
    assert hidden > parse_config(settings(**trusted)).dp_noise
    assert hidden == parse_config(settings(**{**trusted, "participation": 1.0})).dp_noise
    assert Budget(hidden, 100, 100, 1e-5).epsilon(2) <= 20.0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"weights": "size"}, "set weights to 'uniform'"),
        ({"method": "scaffold"}, "'scaffold' does more than that"),
        (
            {"dp_noise": 30.0, "dp_clip": 1.0},
            r"is 30, but the masked sums of 10 clients .* 26",
        ),
    ],
)
def test_what_masked_sums_cannot_keep_private_is_refused(changes, words):
    with pytest.raises(UserError, match=words):
        parse_config(settings(**{**KEYS, "participation": 1.0, **changes}))


def test_the_largest_noise_stays_in_the_range_of_the_sum():
    total = ExactSum({"w": np.zeros(200_000, np.float32)}, 6)
    for _ in range(4):  # of six nodes, four of which must stay
        add_noise(total, largest_noise(6) / 2)
    total.check_partial(total.sums, 4)


def test_noise_has_its_deviation_and_is_finer_than_a_float():
    total = ExactSum({"w": np.ones(100_000, np.float32), "scale": np.ones((), np.float32)}, 10)
    add_noise(total, 0.5)
    steps = total.sums["w"] * 2.0 ** -total.exponents["w"]
    assert np.std(steps) == pytest.approx(0.5, rel=0.02)
    assert total.sums["scale"] != 0
    with pytest.raises(UpdateRefused, match="noise of deviation 1e-14 is too small for 'w'"):
        add_noise(total, 1e-14)


@pytest.mark.parametrize("clip", [1e-9, 1e-3, 1.0])
def test_a_rounded_update_is_no_longer_than_the_norm(clip):
    random = np.random.default_rng(0)
    received = {"a": np.ones((100, 100), np.float32), "b": np.full(50, 1e-3, np.float32)}
    model = {name: a + random.normal(0, 1, a.shape).astype("f4") for name, a in received.items()}
    total = ExactSum(received, 1000)
    total.add_checked(clipped_for(total, model, received, clip), 1)
    added = {name: sums * 2.0 ** -total.exponents[name] for name, sums in total.sums.items()}
    assert 0.9 * clip < np.linalg.norm(flat(added)) <= clip
    with pytest.raises(UpdateRefused, match="an update of norm 1e-13 is too small for the sums"):
        clipped_for(total, model, received, 1e-13)
