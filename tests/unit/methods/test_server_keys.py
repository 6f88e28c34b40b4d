"""Keys of servers that train on prototypes, each at another value than its default.

A server is built from a configuration and takes a round of given uploads. The same round is written
as a loop in plain PyTorch, from the papers' formulas.
"""

import numpy as np
import pytest
import torch
from heterogeneous_runs import run, strategy_of
from torch.nn import functional as F

from strategies.prototypes.uploads import Upload

pytestmark = pytest.mark.usefixtures("few_images")

K, C = 16, 10  # features and classes
CLASSES = [[0, 3], [3, 7], [0]]  # of three clients
RNG = np.random.default_rng(1)
ROWS = [np.float32(0.5 * RNG.normal(size=(len(classes), K))) for classes in CLASSES]
PROTOTYPES = torch.from_numpy(np.concatenate(ROWS))
LABELS = torch.tensor([label for classes in CLASSES for label in classes])


def server_of(**keys):
    """Return the strategy of a configuration, in the middle of its second round."""
    strategy = strategy_of(run(**keys))[0]
    strategy.server_round = 2
    return strategy


def take_round(strategy, rows=ROWS, classes=CLASSES, counts=None):
    strategy._read = {
        client: Upload(rows[client], np.array(classes[client]), counts and counts[client])
        for client in range(len(rows))
    }
    strategy.end_round({})
    return strategy.table.rows


def copies(module):
    return {n: p.detach().clone().requires_grad_() for n, p in module.named_parameters()}


def made(part, residual=False):
    """Return G(E), or E + G(E)."""
    hidden = F.relu(F.linear(part["embedding"], part["first.weight"], part["first.bias"]))
    rows = F.linear(hidden, part["second.weight"], part["second.bias"])
    return part["embedding"] + rows if residual else rows


def descend(part, loss, lr):
    gradients = torch.autograd.grad(loss, list(part.values()))
    with torch.no_grad():
        for value, gradient in zip(part.values(), gradients, strict=True):
            value -= lr * gradient


def separated(prototypes, labels, table, weight, add=False):
    """Return L_intra + weight L_inter, pair by pair; with `add` as sums instead of means."""
    intra = inter = 0.0
    for p, y in zip(prototypes, labels.tolist(), strict=True):
        for c, row in enumerate(table):
            cosine = (p * row).sum() / p.norm() / row.norm()
            if c == y:
                intra = intra + 1 - cosine
            else:
                inter = inter + cosine.abs() / (1 if add else len(table) - 1)
    return (intra + weight * inter) / (1 if add else len(labels))


FEDDOR = {"method": "feddor", "feddor_inter_weight": 0.3, "feddor_server_epochs": 3}
ORGP = {"method": "fedorgp", "fedorgp_gamma": 3.0, "fedorgp_server_epochs": 4}


@pytest.mark.parametrize(
    ("keys", "weight", "epochs"),
    [
        ({**FEDDOR, "feddor_generator": "plain"}, 0.3, 3),
        ({**FEDDOR, "feddor_generator": "residual"}, 0.3, 3),
        ({**FEDDOR, "method": "feddor-no-oi"}, 0.3, 3),
        (ORGP, 3.0, 4),
        ({**ORGP, "fedorgp_reduction": "sum"}, 3.0, 4),
    ],
)
def test_a_server_minimises_intra_and_the_weighted_inter_loss_for_its_epochs(keys, weight, epochs):
    add, lr = keys.get("fedorgp_reduction") == "sum", 0.004 if "fedorgp_reduction" in keys else 0.2
    strategy = server_of(**keys, proto_server_lr=lr)
    part, residual = copies(strategy.maker), keys.get("feddor_generator") == "residual"
    for _ in range(epochs):
        descend(part, separated(PROTOTYPES, LABELS, made(part, residual), weight, add), lr)
    expected = made(part, residual).detach()
    if keys["method"] != "fedorgp":
        expected = F.normalize(expected, dim=1)
    start = strategy.made()
    found = take_round(strategy)
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-3, atol=1e-5)
    assert np.abs(found - start).max() > 0.01, "it trains visibly"


def margin_of(rule, limit):
    """Return FedTGP's margin of the mean prototypes of each uploaded class."""
    centres = [PROTOTYPES[c == LABELS].mean(0) for c in (0, 3, 7)]
    away = [[float((a - b).norm()) for b in centres if b is not a] for a in centres]
    gaps = [max(each) if rule == "max" else min(each) for each in away]
    return min(max(gaps), limit)


@pytest.mark.parametrize(
    ("rule", "limit", "epochs"), [("max", 100.0, 2), ("maxmin", 1.5, 3), ("max", 1.5, 1)]
)
def test_fedtgps_margin_limit_and_epochs_are_those_of_its_keys(rule, limit, epochs):
    keys = {"fedtgp_margin": rule, "fedtgp_tau": limit, "fedtgp_server_epochs": epochs}
    strategy = server_of(method="fedtgp", proto_server_lr=0.3, **keys)
    part, margin = copies(strategy.maker), margin_of(rule, limit)
    for _ in range(epochs):
        loss = 0.0
        for p, y in zip(PROTOTYPES, LABELS.tolist(), strict=True):
            distances = (p - made(part)).square().sum(1).sqrt()
            logits = -distances - margin * F.one_hot(torch.tensor(y), C)
            loss = loss + (logits.exp().sum().log() - logits[y]) / len(LABELS)
        descend(part, loss, 0.3)
    found = take_round(strategy)
    np.testing.assert_allclose(found, made(part).detach().numpy(), rtol=1e-3, atol=1e-5)
    assert strategy.margin == pytest.approx(margin, rel=1e-6)
    assert 1.5 < margin_of("maxmin", 100.0) < margin_of("max", 100.0) < 100.0


@pytest.mark.parametrize(("batch", "epochs"), [(2, 3), (32, 3), (3, 1)])
def test_fedghs_header_takes_a_step_per_batch_of_every_epoch(batch, epochs):
    """All pairs are equal, so that their order does not matter: softmax regression on one pair."""
    keys = {"fedgh_server_epochs": epochs, "proto_batch_size": batch, "proto_server_lr": 0.2}
    strategy = server_of(method="fedgh", **keys)
    header, row = strategy.headers[0], ROWS[0][0].astype(float)
    weight, bias = (getattr(header, n).detach().numpy().astype(float) for n in ("weight", "bias"))
    for _ in range(epochs * -(-5 // batch)):
        logits = weight @ row + bias
        slope = np.exp(logits) / np.exp(logits).sum() - np.eye(C)[4]
        weight, bias = weight - 0.2 * np.outer(slope, row), bias - 0.2 * slope
    take_round(strategy, rows=[ROWS[0][:1]] * 5, classes=[[4]] * 5)
    np.testing.assert_allclose(header.weight.detach(), weight, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(header.bias.detach(), bias, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("memory", [True, False])
@pytest.mark.parametrize("weighting", ["count", "uniform"])
def test_fedproto_keeps_classes_that_nobody_uploads_if_it_has_a_memory(memory, weighting):
    strategy = server_of(method="fedproto", fedproto_memory=memory, fedproto_weighting=weighting)
    counts = [np.array([1, 5]), np.array([3, 2]), np.array([7])]
    first = take_round(strategy, counts=counts if weighting == "count" else None)
    shares = {0: (1, 7), 3: (5, 3)} if weighting == "count" else {0: (1, 1), 3: (1, 1)}
    one = np.average([ROWS[0][0], ROWS[2][0]], axis=0, weights=shares[0])
    other = np.average([ROWS[0][1], ROWS[1][0]], axis=0, weights=shares[3])
    np.testing.assert_allclose(first, [one, other, ROWS[1][1]], rtol=1e-5)
    second = take_round(strategy, [ROWS[2]], [[3]], [np.array([4])])
    known = {0: one, 3: ROWS[2][0], 7: ROWS[1][1]} if memory else {3: ROWS[2][0]}
    assert strategy.table.classes.tolist() == list(known)
    np.testing.assert_allclose(second, list(known.values()), rtol=1e-5)


@pytest.mark.parametrize("target", ["oi", "generator", "none"])
def test_feddors_first_prototypes_are_the_chosen_ones(target):
    keys = {"feddor_first_target": target, "feddor_generator": "plain"}
    strategy, process = strategy_of(run(method="feddor", **keys))
    sent = strategy.extras([0])
    generated = F.normalize(made(copies(strategy.maker)).detach(), dim=1)
    expected = {"oi": process.heterogeneous.rows, "generator": generated.numpy()}
    assert set(sent) == ({"prototypes"} if target in expected else set())
    if target in expected:
        rows = sent["prototypes"]["proto"]
        np.testing.assert_allclose(rows, expected[target], rtol=1e-4, atol=1e-6)
        assert np.abs(expected["oi"] - expected["generator"]).max() > 0.1


def adam(values, gradients, moments, step, lr):
    """Take Adam's step number `step`, from 1 on, in place."""
    for value, gradient, (first, second) in zip(values, gradients, moments, strict=True):
        first += 0.1 * (gradient - first)
        second += 0.001 * (gradient**2 - second)
        root = (second / (1 - 0.999**step)).sqrt() + 1e-8
        value.data -= lr * first / (1 - 0.9**step) / root


def generated(part, noise, labels):
    """Return FedGen's features: two linear layers, BatchNorm and ReLU between them."""
    inputs = torch.cat((noise, F.one_hot(labels, C).float()), 1)
    hidden = F.linear(inputs, part["first.weight"], part["first.bias"])
    hidden = (hidden - hidden.mean(0)) / (hidden.var(0, unbiased=False) + 1e-5).sqrt()
    hidden = F.relu(part["norm.weight"] * hidden + part["norm.bias"])
    return F.linear(hidden, part["second.weight"], part["second.bias"])


def sameness(noise, features):
    """Return FedGen's diversity term: exp of minus the mean product over all pairs of rows."""
    both = list(zip(noise, features, strict=True))
    products = [((a - b).square().mean() * (f - g).abs().mean()) for a, f in both for b, g in both]
    return torch.exp(-torch.stack(products).mean())


@pytest.mark.parametrize("diversity", [0.0, 0.8])
def test_fedgens_generator_takes_its_steps_of_adam_at_its_rate(diversity):
    keys = {"fedgen_server_steps": 3, "fedgen_server_lr": 0.02, "fedgen_diversity": diversity}
    strategy = server_of(method="fedgen", proto_batch_size=6, **keys)
    strategy._label_counts = {0: np.array([5, 0, 3] + [0] * 7)}
    weight, bias = torch.randn(C, K, generator=strategy.training.draw(9)), torch.arange(C) / C
    part = copies(strategy.generator)
    moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in part.values()]
    draw, shares = strategy.training.draw(2), torch.tensor([5.0, 0, 3] + [0] * 7) / 8
    for step in (1, 2, 3):
        labels = torch.multinomial(shares, 6, True, generator=draw)
        noise = torch.rand(6, 32, generator=draw)
        features = generated(part, noise, labels)
        loss = F.cross_entropy(features @ weight.T + bias, labels)
        loss = loss + diversity * sameness(noise, features)
        adam(part.values(), torch.autograd.grad(loss, list(part.values())), moments, step, 0.02)
    strategy.server_update({}, {"head.weight": weight.numpy(), "head.bias": bias.numpy()})
    del part["first.bias"]  # it has no gradient but rounding errors, because BatchNorm follows
    for name, value in part.items():
        found = strategy.generator.get_parameter(name).detach()
        np.testing.assert_allclose(found, value.detach(), rtol=1e-3, atol=2e-4, err_msg=name)


@pytest.mark.parametrize(("server_round", "rank"), [(1, 13), (2, 21), (4, 37)])
def test_fedkds_messages_keep_the_energy_of_its_keys_and_of_the_round(server_round, rank):
    """Of 100 equal singular values k have the energy k / 100; it is 0.125 + 0.08 (round - 1)."""
    keys = {"fedkd_energy_start": 0.125, "fedkd_energy_end": 0.445, "num_rounds": 4}
    strategy, process = strategy_of(run(method="fedkd", **keys))
    orthogonal = np.linalg.qr(np.random.default_rng(2).normal(size=(100, 100)))[0]
    for compress in (strategy.compress, process.client(0).compress):
        sent = compress({"w": np.float32(3.0 * orthogonal)}, server_round)
        np.testing.assert_allclose(sent["w.s"], np.full(rank, 3.0), rtol=1e-4)
        assert (sent["w.u"].shape, sent["w.v"].shape) == ((100, rank), (rank, 100))
