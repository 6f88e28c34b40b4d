"""Differential privacy under masks: nodes clip, and each adds its share of the noise."""

import math
from dataclasses import replace

import numpy as np
import pytest
from in_process import ShuffledGrid, assert_same, break_client, federate, settings

from clients.base import LocalClient
from fedapp import server_app
from fedapp.config.privacy import Budget
from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError
from fedapp.engines.deployment.protections import protections
from fedapp.engines.in_process import InProcessGrid
from fedapp.results.run_directory import RunDirectory
from strategies.aggregate import ExactSum, UpdateRefused
from strategies.rounds.base import ClientStrategy
from strategies.rounds.private import add_noise, largest_noise, limited, with_noise
from strategies.rounds.records import Task
from strategies.secure.node import SecureNode
from strategies.secure.primitives import ProtocolBroken

pytestmark = pytest.mark.usefixtures("few_images")

CLIP, NOISE = 0.01, 3.0
KEYS = {"method": "fedavg", "weights": "uniform", "dp_clip": CLIP, "secure_aggregation": "pairwise"}
QUIET = settings(**KEYS, participation=1.0, num_rounds=1, tolerate_failures=True)
NOISY = {**QUIET, "dp-noise": NOISE}


def flat(model):
    return np.concatenate([array.ravel().astype(np.float64) for array in model.values()])


@pytest.mark.parametrize("method", ["fedavg", "fedavgm", "fedadam", "fedetf", "fedper"])
def test_without_noise_the_model_is_that_of_a_server_that_clips(method):
    run = {**QUIET, "num-rounds": 2, "method": method}
    ours = federate(run, nodes=5)[0]
    for name, array in federate({**run, "secure-aggregation": "off"}, nodes=5)[0].items():
        np.testing.assert_allclose(ours[name], array, rtol=1e-5, atol=1e-6, err_msg=name)
    assert_same(ours, federate(run, nodes=10, seed=3)[0])


def lose_node(monkeypatch):
    """Let the third of five nodes fail before it has sent its masked sum."""
    mask = SecureNode.mask

    def failing(self, *arguments):
        if self.records.config_records["secure-aggregation"]["party"] == 3:
            raise ProtocolBroken("power cut")
        mask(self, *arguments)

    monkeypatch.setattr(SecureNode, "mask", failing)


@pytest.mark.parametrize(("lost", "parties"), [("nobody", 5), ("its clients", 5), ("a node", 4)])
def test_the_noise_of_the_nodes_that_must_stay_is_that_of_the_budget(lost, parties, monkeypatch):
    """Of five nodes four must stay, and the noise of three of them is what is counted.

    The noise must not tell that a node's clients have failed, which their images may cause.
    """
    if lost == "its clients":
        break_client(monkeypatch, {2, 7}, RuntimeError("power cut"))
    elif lost == "a node":
        lose_node(monkeypatch)
    model, strategy, _ = federate(NOISY, nodes=5)
    assert len(strategy.report.failures) == (0 if lost == "nobody" else 2)
    noise = flat(model) - flat(federate(QUIET, nodes=5)[0])
    expected = NOISE * CLIP / 10 * math.sqrt(parties / 3)
    assert len(noise) > 100_000
    assert np.std(noise) == pytest.approx(expected, rel=0.015)
    assert abs(np.mean(noise)) < 5 * expected / math.sqrt(len(noise))


def test_a_lost_client_counts_as_an_update_of_zero(monkeypatch):
    """Its node stays, with another client. The scale of the mean must not tell."""
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
    assert "the nodes add it, so also against" in found["differential privacy"]


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
            r"is 30, but the masked sums of 10 clients .* 25:",
        ),
    ],
)
def test_what_masked_sums_cannot_keep_private_is_refused(changes, words):
    with pytest.raises(UserError, match=words):
        parse_config(settings(**{**KEYS, "participation": 1.0, **changes}))


def test_the_largest_noise_stays_in_the_range_of_the_sum():
    total = ExactSum({"w": np.zeros(200_000, np.float32)}, 5)
    for _ in range(5):  # of five nodes, three of which must stay if the share is just above half
        add_noise(total, largest_noise(5), 3)
    total.check_partial(total.sums, 5)
    assert abs(total.sums["w"]).max() * 2.0 ** -total.exponents["w"] > 0.2 * 5 * 64
    assert 8 * 1.6 * largest_noise(5) == pytest.approx(5 * 64 / 2)


def test_noise_has_its_deviation_for_every_tensor_and_another_value_each_time():
    total = ExactSum({"w": np.ones(100_000, np.float32), "scale": np.ones((), np.float32)}, 10)
    add_noise(total, 0.5, 5)
    first = total.sums["w"] * 2.0 ** -total.exponents["w"]
    assert np.std(first) == pytest.approx(0.5 / 2, rel=0.02)
    assert total.sums["scale"] != 0
    add_noise(total, 0.5, 5)
    both = total.sums["w"] * 2.0 ** -total.exponents["w"]
    assert np.std(both) == pytest.approx(0.5 / math.sqrt(2), rel=0.02)
    with pytest.raises(UpdateRefused, match="noise of deviation 1e-14 is too small for 'w'"):
        add_noise(total, 1e-14, 5)


def test_the_noise_is_gaussian():
    """Its distribution, tested against the normal one by Kolmogorov and Smirnov, p = 1e-9."""
    quiet = {"w": np.zeros(200_000)}
    values = np.sort(with_noise(quiet, 1.0, 2.0)["w"])
    below = np.array([(1 + math.erf(value / math.sqrt(8))) / 2 for value in values])
    places = np.arange(200_000) / 200_000
    assert np.abs(below - places).max() < 3.3 / math.sqrt(200_000)
    again = with_noise(quiet, 1.0, 2.0)["w"]
    assert abs(np.corrcoef(again[:100_000], again[100_000:])[0, 1]) < 0.02  # of a pair's halves
    assert not np.array_equal(np.sort(again), values)


@pytest.mark.parametrize("deviation", [1e-6, 1.0, 15.0])
def test_the_last_bits_of_a_noisy_sum_do_not_tell_those_of_the_updates(deviation):
    """A float64 of 2^53 or more is even: with steps of 1 the sum would be odd where updates are."""
    received = {"w": np.zeros(100_000, np.float32)}
    total = ExactSum(received, 3)
    random = np.random.default_rng(0)
    for _ in range(3):
        model = {"w": random.normal(0, 1, 100_000).astype(np.float32)}
        update = limited(total, model, received, 300.0, deviation)
        total.add_checked(total.check(update), 1)
    exact = total.sums["w"].copy()
    step = int(np.gcd.reduce(exact))
    add_noise(total, deviation, 3)
    assert not np.any(total.sums["w"] % step)
    for bits in (2, 4, 8):
        rests = (total.sums["w"] // step - exact // step) % bits
        assert np.bincount(rests, minlength=bits) / 100_000 == pytest.approx(1 / bits, abs=0.01)


def test_a_huge_update_is_cut_and_no_reason_to_leave_its_client_out(monkeypatch):
    finish = LocalClient.finish

    def huge(self, received, update, lr):
        finish(self, received, update, lr)
        if self.client == 2:
            update.shared = {name: 1e6 * array for name, array in update.shared.items()}

    initial = flat(federate({**QUIET, "lr": 1e-30}, nodes=5)[0])
    monkeypatch.setattr(LocalClient, "finish", huge)
    final, strategy, _ = federate(QUIET, nodes=5)
    assert len(strategy.report.results) == 10
    assert np.linalg.norm(flat(final) - initial) <= CLIP * 1.01


@pytest.mark.parametrize("change", [{"weights": "size"}, {"clients": (2, 2, 7)}])
def test_a_node_refuses_to_count_a_client_more_than_once(change, monkeypatch):
    answer, tasks = ShuffledGrid.answer, ClientStrategy._tasks

    def changed(self, clients, total_weight):
        found = tasks(self, clients, total_weight)
        return {node: replace(t, **change) if 2 in t.clients else t for node, t in found.items()}

    def greedy(self, message):
        records = message.content.config_records
        if message.metadata.message_type == "train" and message.metadata.dst_node_id == 102:
            records["task"] = replace(Task.from_record(records["task"]), **change).to_record()
        return answer(self, message)

    if "clients" in change:
        monkeypatch.setattr(ClientStrategy, "_tasks", changed)
    else:  # an honest server would not open sums of different tasks
        monkeypatch.setattr(ShuffledGrid, "answer", greedy)
    _, strategy, _ = federate(NOISY, nodes=5)
    assert {each.client for each in strategy.report.failures} == {2, 7}
    assert "a client counts more than dp-clip allows" in strategy.report.failures[0].reason


@pytest.mark.parametrize("clip", [1e-9, 1e-3, 1.0])
def test_a_rounded_update_is_no_longer_than_the_norm(clip):
    random = np.random.default_rng(0)
    received = {"a": np.ones((100, 100), np.float32), "b": np.full(50, 1e-3, np.float32)}
    model = {name: a + random.normal(0, 1, a.shape).astype("f4") for name, a in received.items()}
    total = ExactSum(received, 1000)
    total.add_checked(total.check(limited(total, model, received, clip, NOISE * clip)), 1)
    added = {name: sums * 2.0 ** -total.exponents[name] for name, sums in total.sums.items()}
    assert 0.9 * clip < np.linalg.norm(flat(added)) <= clip
    with pytest.raises(UpdateRefused, match="an update of norm 1e-13 is too small for the sums"):
        limited(total, model, received, 1e-13, 1.0)
