"""FedLC, FedRS and FedDecorr: their losses against the formulas, and what they reduce to."""

import numpy as np
import pytest
import torch
from in_process import assert_same, differ, federate, settings
from torch.nn import functional as F

from clients import losses
from fedapp.config.auto import is_ordinary
from fedapp.config.paper_settings import GUESS, NOT_COMPARED, PUBLISHED, SETTINGS
from fedapp.methods.table import METHODS

LOGITS = torch.tensor(
    [[0.5, -1.0, 2.0, 0.1], [1.5, 0.3, -0.7, 0.0], [-0.2, 0.9, 0.4, -1.1]], dtype=torch.float64
)
LABELS = torch.tensor([0, 2, 0])
COUNTS = torch.tensor([16.0, 0.0, 81.0, 0.0])  # n^(-1/4) is 1/2 and 1/3


def test_fedlc_is_the_softmax_over_the_clients_classes_with_margins():
    tau = 0.6
    terms = []
    for row, label in zip(LOGITS.tolist(), LABELS.tolist(), strict=True):
        shifted = {0: row[0] - tau / 2, 2: row[2] - tau / 3}
        terms.append(np.log(sum(np.exp(value) for value in shifted.values())) - shifted[label])
    found = losses.calibrated_cross_entropy(LOGITS, LABELS, COUNTS, tau)
    assert float(found) == pytest.approx(np.mean(terms), rel=1e-12)


def test_a_class_that_a_fedlc_client_lacks_gets_no_gradient():
    logits = LOGITS.clone().requires_grad_()
    losses.calibrated_cross_entropy(logits, LABELS, COUNTS).backward()
    assert (logits.grad[:, [1, 3]] == 0).all()
    assert (logits.grad[:, [0, 2]] != 0).all()


def test_fedlc_with_equal_counts_is_cross_entropy():
    found = losses.calibrated_cross_entropy(LOGITS, LABELS, torch.full((4,), 7.0), 0.9)
    torch.testing.assert_close(found, F.cross_entropy(LOGITS, LABELS), rtol=1e-6, atol=0)


def test_fedrs_shortens_the_logits_of_classes_that_the_client_lacks():
    scale = losses.restricted_scale(COUNTS, 0.5)
    assert scale.tolist() == [1.0, 0.5, 1.0, 0.5]
    found = losses.scaled_cross_entropy(LOGITS, LABELS, scale)
    by_hand = LOGITS.numpy() * [1.0, 0.5, 1.0, 0.5]
    chosen = by_hand[np.arange(3), LABELS.numpy()]
    assert float(found) == pytest.approx(np.mean(np.log(np.exp(by_hand).sum(1)) - chosen))


@pytest.mark.parametrize(("batch", "width"), [(7, 5), (4, 9), (2, 3)])
def test_feddecorr_is_the_mean_squared_correlation(batch, width):
    features = torch.tensor(np.random.default_rng(0).normal(size=(batch, width)))
    correlations = np.corrcoef(features.numpy(), rowvar=False)
    printed = losses.feature_decorrelation(features, authors=False)
    assert float(printed) == pytest.approx((correlations**2).sum() / width**2, rel=1e-4)
    pairs = correlations[~np.eye(width, dtype=bool)]
    of_code = losses.feature_decorrelation(features)
    assert float(of_code) == pytest.approx((batch - 1) ** 2 / batch * (pairs**2).mean(), rel=1e-4)


def test_feddecorr_is_as_exact_under_autocast():
    features = torch.randn(50, 40, generator=torch.Generator().manual_seed(0)).relu()
    plain = losses.feature_decorrelation(features)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(losses.feature_decorrelation(features), plain)


@pytest.mark.parametrize("authors", [True, False])
@pytest.mark.parametrize("features", [torch.ones(1, 4), torch.zeros(3, 4), torch.ones(3, 1)])
def test_feddecorr_of_constant_features_is_zero_and_so_is_its_gradient(features, authors):
    features = features.clone().requires_grad_()
    loss = losses.feature_decorrelation(features, authors)
    loss.backward()
    assert loss.item() == 0
    assert (features.grad == 0).all()


@pytest.mark.parametrize(
    ("method", "neutral", "strong"),
    [
        ("fedrs", {"fedrs_alpha": 1.0}, {"fedrs_alpha": 0.2}),
        ("feddecorr", {"beta": 0.0}, {"feddecorr_authors": False}),
        ("fedlc", {"fedlc_tau": 0.0}, {"fedlc_tau": 3.0}),
    ],
)
def test_at_the_neutral_setting_it_is_fedavg(method, neutral, strong):
    every_class = {"lr": 0.05, "num_rounds": 2, "partition": "iid", "num_clients": 5}
    run = {**every_class, "participation": 0.4}
    plain = federate(settings(method="fedavg", **run))[0]
    assert_same(plain, federate(settings(method=method, **run, **neutral))[0])
    few_classes = {**run, "partition": "shards", "shards": 2}
    skewed, changed = (
        federate(settings(method=method, **few_classes, **keys))[0] for keys in ({}, strong)
    )
    assert differ(skewed, federate(settings(method="fedavg", **few_classes))[0])
    assert differ(skewed, changed)


def test_rates_of_methods_that_the_papers_do_not_compare_with_are_not_called_published():
    assert METHODS.keys() > NOT_COMPARED
    setting = SETTINGS["cifar10", "cnn"]
    for name in (*NOT_COMPARED, "fedlc", "fedrs"):
        rate = setting.rate(name, is_ordinary(name, METHODS[name]))
        assert (rate.value, rate.origin) == (setting.lr.value, GUESS)
    assert setting.rate("fedavg", is_ordinary("fedavg", METHODS["fedavg"])).origin == PUBLISHED
