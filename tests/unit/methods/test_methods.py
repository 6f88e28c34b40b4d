"""Every method of the table trains, reduces to its parent, keeps frozen parts, ignores order."""

import re

import numpy as np
import pytest
import torch
from in_process import ROOT, assert_same, differ, federate, settings

from clients.training.objective import BASE_LOSSES, REGULARISERS
from fedapp.config.resolve import parse_config
from fedapp.config.run_config import RunConfig
from fedapp.methods.table import METHODS
from fedapp.models.heads import HEADS
from fedapp.models.model import ALL_BUT_NORMS
from fedapp.runtime.process.context import ProcessContext

pytestmark = pytest.mark.usefixtures("few_images")

ONE_MODEL = [name for name, row in METHODS.items() if row.heterogeneous is None]


def shortened(method, **changes):
    """Return a configuration of three clients; two rounds for methods that train ResNets only."""
    less = {"num_rounds": 2} if METHODS[method].needs else {}
    return settings(**{"method": method, "participation": 0.3, **changes, **less})


@pytest.mark.parametrize("method", ONE_MODEL)
def test_training_moves_the_model_and_lowers_the_loss(method):
    losses = []
    faster = {"pfedme_eta": 0.05} if method == "pfedme" else {}  # four rounds at its own are few
    final, _, history = federate(
        settings(method=method, participation=0.3, num_rounds=4, partition="iid", **faster),
        after_round=lambda strategy: losses.append(strategy.report.train_loss),
    )
    assert differ(final, history[0]) or not final  # clients that train alone send nothing
    assert all(np.isfinite(array).all() for array in final.values())
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    ("method", "parent", "neutral"),
    [
        ("fedprox", "fedavg", {"mu": 0.0}),
        ("fedntd", "fedavg", {"beta": 0.0}),
        ("feddr+", "dr", {"beta": 1.0}),
        ("fedfr", "fedavg", {"mu": 0.0}),
        ("fedavgm", "fedavg", {"fedavgm_beta": 0.0}),
        ("fedntd-mse", "fedavg", {"beta": 0.0}),
        ("kd-ntd", "fedntd", {"kd_ntd_lambda": 1.0, "tau": 1.0}),
        ("fedsol", "fedavg", {"fedsol_rho": 0.0}),
    ],
)
def test_equals_its_parent_bit_for_bit_at_the_neutral_setting(method, parent, neutral):
    lr = {"lr": 0.05}
    child = federate(settings(method=method, **neutral, **lr))[0]
    assert_same(child, federate(settings(method=parent, **lr))[0])
    assert differ(
        child,
        federate(settings(method=method, **lr, **({"mu": 1.0} if "mu" in neutral else {})))[0],
    )


@pytest.mark.parametrize("regulariser", REGULARISERS)
@pytest.mark.parametrize("base", ["fedavg", "fedbabu", "dr", "fedfn"])
def test_every_regulariser_runs_on_every_base_and_is_neutral_at_beta_one(base, regulariser):
    lr = {"lr": 0.05, "num_rounds": 1}
    plain = federate(settings(method=base, **lr))[0]
    assert_same(plain, federate(settings(method=base, regulariser=regulariser, beta=1.0, **lr))[0])
    assert differ(
        plain, federate(settings(method=base, regulariser=regulariser, beta=0.5, **lr))[0]
    )


def test_feddr_plus_is_dr_with_feature_distillation():
    plus = federate(settings(method="feddr+"))[0]
    assert_same(plus, federate(settings(method="dr", regulariser="fd", beta=0.9, lr=0.3))[0])


@pytest.mark.parametrize("method", ONE_MODEL)
def test_nodes_and_reply_order_change_no_bit(method):
    run = shortened(method)
    one = federate(run, nodes=3, seed=1)[0]
    assert_same(one, federate(run, nodes=12, seed=4)[0])  # two nodes host nobody


@pytest.mark.parametrize("nodes", [1, 6, 10])
def test_any_number_of_nodes_changes_no_bit(nodes):
    run = settings(method="scaffold")
    assert_same(federate(run, nodes=3, seed=1)[0], federate(run, nodes=nodes, seed=2)[0])


@pytest.mark.parametrize("method", [n for n, row in METHODS.items() if HEADS[row.head.name].frozen])
def test_frozen_heads_are_not_sent_and_stay_unchanged_with_weight_decay(method):
    config = parse_config(settings(method=method, weight_decay=0.1))
    process = ProcessContext(config)
    shared = {name for name in process.slot.shared if name.startswith("head.")}
    assert shared == ({"head.scale"} if "scale" in METHODS[method].exchange.also_sends else set())
    before = process.model.head.weight.detach().clone()
    received = [tensor.detach().numpy().copy() for tensor in process.slot.shared.values()]
    process.client(0).fit(received, {"server_round": 1, "lr": 0.1})
    assert torch.equal(before, process.model.head.weight)
    assert process.head_hash() == ProcessContext(config).head_hash() != ""


@pytest.mark.parametrize("weights", ["size", "uniform"])
def test_weights_of_the_mean(weights):
    run = settings(
        method="fedavg",
        partition="lda",
        alpha=0.5,
        weights=weights,
        num_rounds=1,
        participation=1.0,
    )
    config = parse_config(run)
    process = ProcessContext(config)
    initial = [tensor.detach().numpy().copy() for tensor in process.slot.shared.values()]
    models, sizes = [], []
    for client in range(10):
        arrays, examples, _ = process.client(client).fit(
            initial, {"server_round": 1, "lr": config.lr}
        )
        models.append(arrays)
        sizes.append(examples if weights == "size" else 1)
    assert len(set(sizes)) > 1 or weights == "uniform"
    for mean, *parts in zip(federate(run)[0].values(), *models, strict=True):
        expected = np.average(np.stack(parts).astype(np.float64), axis=0, weights=sizes)
        np.testing.assert_allclose(mean, expected, rtol=2e-7, atol=1e-9)


def test_the_table_is_whole():
    for name, row in METHODS.items():
        assert row.loss.base in BASE_LOSSES, name
        assert row.title, name
        assert row.source, name
        frozen = HEADS[row.head.name].frozen
        words = ("model", "body", "head", ALL_BUT_NORMS, "mentee", "nothing")
        assert row.exchange.sends in words, name
        assert row.exchange.sends != "model" or not frozen, name
        assert ("scale" in row.exchange.also_sends) == HEADS[row.head.name].learn_scale, name
        assert set(row.defaults) <= {"beta", "mu", "tau", "local_epochs"}
        assert set(row.fixed) <= set(RunConfig.model_fields), name


def test_the_security_page_lists_every_method_once():
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    rows = [line.split("|") for line in page.partition("| a client sends |")[2].splitlines()]
    cells = " ".join(row[2] for row in rows if len(row) == 5)
    words = " ".join(re.findall("`([^`]+)`", cells)).split()
    named = sorted(word for word in words if word in METHODS)
    assert named == sorted(name for name in METHODS if not name.endswith("-ft"))
