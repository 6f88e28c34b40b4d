"""Keys of methods with one model for all clients, each at another value than its default.

Clients and servers are built from a configuration. The expected numbers are those of the papers'
formulas in a loop of plain PyTorch or NumPy.
"""

import numpy as np
import pytest
import torch
from heterogeneous_runs import strategy_of
from in_process import settings
from test_personal_mixtures import LR, ce, process_of, sgd
from torch.nn import functional as F

from clients.fedcurv import IMPORTANCE, OF, WEIGHTED
from clients.state.memory import Memory
from clients.state.store import ClientState
from fedapp.config.resolve import parse_config
from fedapp.runtime.process.context import ProcessContext
from strategies.rounds.records import ClientResult

pytestmark = pytest.mark.usefixtures("few_images")


def kl(received, z):
    """Return KL(softmax(received) || softmax(z)), summed over classes, mean over the batch."""
    p = received.softmax(1)
    return (p * (received.log_softmax(1) - z.log_softmax(1))).sum(1).mean()


def without_true(z, labels):
    return torch.stack([torch.cat((r[:y], r[y + 1 :])) for r, y in zip(z, labels, strict=True)])


def kd_ntd(f, z, received, labels, counts):
    parts = without_true(received, labels) / 2, without_true(z, labels) / 2
    return ce(z, labels) + 0.6 * 4 * (0.7 * kl(received / 2, z / 2) + 0.3 * kl(*parts))


def plain_ntd(f, z, received, labels, counts):
    return ce(z, labels) + 0.8 * kl(without_true(received, labels) / 3, without_true(z, labels) / 3)


def fedlc(f, z, received, labels, counts):
    present = counts > 0
    margins = 3 * counts[present] ** -0.25
    own = present.cumsum(0) - 1  # a label's place among the client's classes
    return ce(z[:, present] - margins, own[labels])


def decorrelated(f, z, received, labels, counts):
    moved = f - f.mean(0)
    columns = moved / (moved.square().sum(0) + 1e-8 * (len(f) - 1)).sqrt()
    return ce(z, labels) + 0.5 * (columns.T @ columns).square().mean()


def sum_of_squares(f, z, received, labels, counts):
    return (z - F.one_hot(labels, 10)).square().sum(1).mean()


def excluded(f, z, received, labels, counts):
    present = counts > 0
    own = present.cumsum(0) - 1
    return ce(z[:, present] + counts[present].log(), own[labels])


@pytest.mark.parametrize(
    ("method", "keys", "loss"),
    [
        ("kd-ntd", {"kd_ntd_lambda": 0.3, "beta": 0.6, "tau": 2.0}, kd_ntd),
        ("fedntd", {"ntd_tau_squared": False, "beta": 0.8, "tau": 3.0}, plain_ntd),
        ("fedlc", {"fedlc_tau": 3.0}, fedlc),
        ("fedrs", {"fedrs_alpha": 0.2},
         lambda f, z, received, labels, n: ce(z * torch.where(n > 0, 1.0, 0.2), labels)),
        # in two steps: its gradient is steep where features hardly vary, and multiplies rounding
        ("feddecorr", {"feddecorr_authors": False, "beta": 0.5, "batch_size": 80}, decorrelated),
        ("spherefed", {"spherefed_reduction": "sum-classes"}, sum_of_squares),
        ("fedetf", {"fedetf_missing": "exclude"}, excluded),
        ("fedgela", {"fedgela_temperature": 0.2},
         lambda f, z, received, labels, n: ce(z * 10 * n / n.sum() / 0.2, labels)),
    ],
)  # fmt: skip
def test_a_client_minimises_its_loss_with_the_keys_of_the_configuration(method, keys, loss):
    run = settings(method=method, **{"local_epochs": 1, "batch_size": 11, **keys})
    process = ProcessContext(parse_config(run))
    client, model, teacher = process.client(0), process.new_model(), process.new_model()
    optimiser = sgd([p for p in model.parameters() if p.requires_grad])
    counts = client.data.class_counts.float()
    assert 0 < (counts > 0).sum() < 10
    for images, labels in client.data.training(1)():
        optimiser.zero_grad()
        with torch.no_grad():
            received = teacher(images)[1]
        loss(*model(images), received, labels, counts).backward()
        optimiser.step()
    close(trained(client), model)


def close(update, model):
    for name, value in model.named_parameters():
        if value.requires_grad:
            found, expected = update.shared[name], value.detach()
            np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5, err_msg=name)


def trained(client, server_round=1):
    """Let a client train from the initial model."""
    start = client.slot.initial(client.client).state_dict()
    received = {name: start[name].numpy().copy() for name in client.shared}
    return client.work(received, server_round, LR)


def test_feddyns_quadratic_term_and_its_clients_gradient_have_the_weight_of_the_key(tmp_path):
    process, own = process_of("feddyn", feddyn_alpha=0.7, local_epochs=1), None
    for server_round in (1, 2):
        state = ClientState(tmp_path, "run", 0, {"v": "1"})
        client = process.client(0, Memory(state, server_round, server_round - 1))
        model, start = process.new_model(), list(process.new_model().parameters())
        own = own or [torch.zeros_like(w) for w in start]
        optimiser = sgd(model.parameters())
        for images, labels in client.data.training(server_round)():
            optimiser.zero_grad()
            loss = ce(model(images)[1], labels)
            for w, w_g, g in zip(model.parameters(), start, own, strict=True):
                loss = loss - (g * w).sum() + 0.35 * (w - w_g.detach()).square().sum()
            loss.backward()
            optimiser.step()
        update = trained(client, server_round)
        client.save_state(update)
        close(update, model)
        pairs = zip(own, model.parameters(), start, strict=True)
        own = [(g - 0.7 * (w - w_g)).detach() for g, w, w_g in pairs]
        for (name, _), g in zip(model.named_parameters(), own, strict=True):
            np.testing.assert_allclose(update.state[name], g, rtol=1e-3, atol=2e-6)


def test_fedcurvs_penalty_has_the_weight_of_the_key():
    process, draw = process_of("fedcurv", fedcurv_lambda=0.3, local_epochs=1), torch.manual_seed(0)
    model = process.new_model()
    p, q = ({n: torch.rand(w.shape, generator=draw) for n, w in model.named_parameters()}
            for _ in range(2))  # fmt: skip
    sums = {IMPORTANCE: p, WEIGHTED: q}
    extras = {group: {n: t.numpy().copy() for n, t in each.items()} for group, each in sums.items()}
    client = process.client(0, None, {**extras, OF: {"clients": np.array([1, 2])}})
    optimiser = sgd(model.parameters())
    for images, labels in client.data.training(1)():
        optimiser.zero_grad()
        loss = ce(model(images)[1], labels)
        for name, w in model.named_parameters():
            loss = loss + 0.3 * ((p[name] * w * w).sum() - 2 * (q[name] * w).sum())
        loss.backward()
        optimiser.step()
    close(trained(client), model)


def server_of(method, **keys):
    """Return a strategy of four clients, and a function that lets it take its next step."""
    strategy = strategy_of(settings(method=method, num_clients=4, shards=5, **keys))[0]

    def take(before, mean):
        names = strategy.trained
        after = strategy.server_update(dict.fromkeys(names, before), dict.fromkeys(names, mean))
        assert all(np.array_equal(after[name], after[names[0]]) for name in names)
        return after[names[0]]

    return strategy, take


MEANS = np.array([[3.0, -2.5], [0.2, -2.1], [1.4, 5.0]])  # of three rounds


@pytest.mark.parametrize("nesterov", [True, False])
def test_fedavgms_momentum_is_that_of_its_keys(nesterov):
    take = server_of("fedavgm", fedavgm_beta=0.4, fedavgm_nesterov=nesterov)[1]
    found = expected = np.array([1.0, -2.0])
    momentum = 0.0
    for mean in MEANS:
        found, moved = take(found, mean), expected - mean
        momentum = 0.4 * momentum + moved
        expected = expected - (moved + 0.4 * momentum if nesterov else momentum)
        np.testing.assert_allclose(found, expected, rtol=1e-9)


SECOND = {
    "fedadagrad": lambda v, d: v + d**2,
    "fedyogi": lambda v, d: v - 0.4 * d**2 * np.sign(v - d**2),
    "fedadam": lambda v, d: 0.6 * v + 0.4 * d**2,
}


@pytest.mark.parametrize("method", SECOND)
def test_the_moments_and_the_step_of_fedopt_are_those_of_its_keys(method):
    keys = {"fedopt_server_lr": 0.3, "fedopt_tau": 0.2}
    beta1 = 0.0 if method == "fedadagrad" else 0.8
    keys |= {"fedopt_beta1": 0.8, "fedopt_beta2": 0.6} if beta1 else {}
    take = server_of(method, **keys)[1]
    found = expected = np.array([1.0, -2.0])
    first, second = 0.0, np.full(2, 0.2**2)
    for mean in MEANS:
        found, moved = take(found, mean), mean - expected
        first = beta1 * first + (1 - beta1) * moved
        second = SECOND[method](second, moved)
        expected = expected + 0.3 * first / (np.sqrt(second) + 0.2)
        np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.parametrize(("step", "parts"), [("paper", 1), ("authors", 3), ("feddr+", 4)])
def test_fedexps_epsilon_is_that_of_its_key_in_every_rule(step, parts):
    """It counts once, for each client of the round, or for each of all four clients."""
    strategy, take = server_of("fedexp", fedexp_epsilon=0.5, fedexp_step=step)
    sizes, squares = np.array([1, 2, 5]), np.array([900.0, 400.0, 1600.0])
    squares /= 100 if step == "feddr+" else 1  # this rule never steps farther than the mean
    strategy.report.results = [
        ClientResult(i, int(n), 1, 0.0, 0.0, 0, float(square))
        for i, (n, square) in enumerate(zip(sizes, squares, strict=True))
    ]
    before, mean, names = np.array([1.0, -2.0]), np.array([3.0, -1.0]), len(strategy.trained)
    square = names * 5.0  # of the mean update: 2 and 1 in every tensor
    if step == "feddr+":
        eta = min(1.0, np.sqrt(squares).mean() / 2 / (np.sqrt(square) + parts * 0.5))
    else:
        eta = max(1.0, (sizes * squares).sum() / sizes.sum() / 2 / (square + parts * 0.5))
    np.testing.assert_allclose(take(before, mean), before + eta * (mean - before), rtol=1e-9)
    assert strategy.report.metrics["step_length"] == pytest.approx(eta)
    assert eta != 1.0


def test_feddyns_server_sums_with_the_weight_of_the_key():
    strategy, take = server_of("feddyn", feddyn_alpha=0.7)
    strategy.report.results = [ClientResult(i, 1, 1, 0.0, 0.0, 0, 0.0) for i in range(3)]
    found, h = np.array([1.0, -2.0]), 0.0
    for mean in MEANS:
        h = h - 0.7 / 4 * 3 * (mean - found)
        found = take(found, mean)
        np.testing.assert_allclose(found, mean - h / 0.7, rtol=1e-6)
        np.testing.assert_allclose(strategy.state()[strategy.trained[0]], h, rtol=1e-6)
