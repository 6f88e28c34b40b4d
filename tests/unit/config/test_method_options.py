"""Options of methods with one model for all clients: variants from their papers and code.

Losses are compared with the test vectors that exist. Every option must reach the training from the
configuration.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from in_process import assert_same, differ, federate, settings, work
from reference import VECTORS, tensor
from torch import Tensor

from clients import losses
from clients.training.objective import BASE_LOSSES, REGULARISERS, LossOptions, Step
from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError
from fedapp.methods.table import METHODS
from fedapp.models.heads import HEADS, Head, build_head
from fedapp.runtime.process.context import ProcessContext

PUBLISHED = VECTORS["losses"]


FEATURES, W, BIAS, U = (tensor(VECTORS["inputs"][name]) for name in ("f_local", "W", "b", "U"))
Z, Z_GLOBAL = (tensor(VECTORS["logits"][name]) for name in ("linear_local", "linear_global"))
LABELS, COUNTS = (torch.tensor(VECTORS["inputs"][name]) for name in ("y", "class_counts"))
ETF = tensor(VECTORS["etf"]["V_rows_are_classes"])
COSINES = Head(ETF, normalise=True)(FEATURES)


def loss_of(name: str, logits: Tensor, **options) -> float:
    """Return a base loss or regulariser on the batch of the test vectors, with options."""
    step = Step(
        LABELS, FEATURES, logits, W, global_logits=Z_GLOBAL, class_counts=COUNTS.double(), tau=3.0
    )
    if name in BASE_LOSSES:
        return BASE_LOSSES[name](step, **options).item()
    return REGULARISERS[name].function(replace(step, options=LossOptions(**options))).item()


@pytest.mark.parametrize(
    ("name", "logits", "options", "vector"),
    [
        ("ntd", Z, {}, "NTD_times_tau2_tau3"),
        ("ntd", Z, {"tau_squared": False}, "NTD_raw_tau3"),
        ("cosine-mse", Head(U.T, normalise=True)(FEATURES), {}, "SphereFed_MSE_meanBC"),
        ("cosine-mse", Head(U.T, normalise=True)(FEATURES), {"reduction": "sum-classes"},
         "SphereFed_MSE_sumC"),
        ("balanced-ce", COSINES, {}, "FedETF_balanced_beta1_gamma1_counts_clamped_1"),
        ("balanced-ce", COSINES, {"missing": "exclude"},
         "FedETF_balanced_beta1_gamma1_counts_with_zero_neginf"),
        ("scaled-ce", Head(ETF)(FEATURES), {}, "FedGELA_CE_unnormalised_f"),
        ("scaled-ce", COSINES, {}, "FedGELA_CE_temp1"),
        ("scaled-ce", 0.2 * COSINES, {"temperature": 0.2}, "FedGELA_CE_temp1"),
    ],
)  # fmt: skip
def test_a_loss_with_its_option_has_the_published_value(name, logits, options, vector):
    assert loss_of(name, logits, **options) == pytest.approx(PUBLISHED[vector], rel=1e-9)


def test_the_head_of_fedfn_with_a_bias_has_the_published_loss():
    assert METHODS["fedfn"].head.options == {"bias": "fedfn-bias"}
    head = build_head(replace(HEADS["normalised-linear"], bias=True), 6, 4, seed=0).double()
    with torch.no_grad():
        head.weight.copy_(W)
        head.bias.copy_(BIAS)
    loss = losses.cross_entropy(head(FEATURES), LABELS)
    assert loss.item() == pytest.approx(PUBLISHED["FedFN_CE_withbias"], rel=1e-9)


def process_of(method: str, **keys) -> ProcessContext:
    return ProcessContext(parse_config(settings(method=method, **keys)))


@pytest.mark.parametrize("method", ["fedfn", "fedexp+fn", "scaffold+fn", "fedfn-ft"])
def test_a_bias_of_fedfns_head_is_trained_and_sent(method):
    plain, other = (process_of(method, fedfn_bias=bias) for bias in (False, True))
    assert "head.bias" not in plain.slot.shared
    assert other.slot.shared["head.bias"].requires_grad
    assert torch.equal(plain.model.head.weight, other.model.head.weight)


def test_fedetfs_scale_can_be_fixed_and_start_elsewhere():
    learned = process_of("fedetf", fedetf_scale_init=10.0)
    assert learned.slot.shared["head.scale"].item() == 10.0
    fixed = process_of("fedetf", fedetf_scale_init=10.0, fedetf_learn_scale=False)
    assert fixed.model.head.scale == 10.0
    assert "head.scale" not in fixed.slot.shared
    images = torch.rand(3, 1, 8, 8)
    with torch.no_grad():
        assert torch.equal(learned.model(images)[1], fixed.model(images)[1])


def test_fedgela_can_normalise_features():
    head = process_of("fedgela", fedgela_normalise=True).model.head
    features = torch.rand(3, head.weight.shape[1])
    torch.testing.assert_close(head(5 * features), head(features))
    assert head.frozen
    assert not process_of("fedgela").model.head.normalise


def test_the_etf_of_clients_alone_can_be_trained():
    frozen, trained = (process_of("local-etf", local_etf_frozen=keeps) for keeps in (True, False))
    start = frozen.model.head.weight.detach().clone()
    assert torch.equal(trained.model.head.weight, start)
    assert trained.head_hash() == ""
    for process, moves in ((frozen, False), (trained, True)):
        client = process.client(0)
        update = work(client)
        assert torch.equal(process.model.head.weight, start) != moves
        assert ("head.weight" in update.state) == moves
    assert process_of("local-dr", local_etf_frozen=False).model.head.frozen


@pytest.mark.parametrize(
    ("method", "keys"),
    [
        ("fedntd", {"ntd_tau_squared": False, "tau": 3.0}),
        ("dr", {"ntd_tau_squared": False, "tau": 3.0, "regulariser": "ntd", "beta": 0.5}),
        ("spherefed", {"spherefed_reduction": "sum-classes"}),
        ("fedetf", {"fedetf_missing": "exclude"}),
        ("fedetf", {"fedetf_learn_scale": False}),
        ("fedetf", {"fedetf_scale_init": 10.0}),
        ("fedgela", {"fedgela_temperature": 0.2}),
        ("fedgela", {"fedgela_normalise": True}),
        ("fedcurv", {"fedcurv_per_sample": True, "fedcurv_samples": 20}),
        ("fedexp", {"fedexp_step": "authors"}),
        ("fedexp", {"fedexp_step": "feddr+"}),
    ],
)
def test_an_option_arrives_from_the_configuration_and_changes_the_training(method, keys):
    option, *others = keys
    plain = {name: keys[name] for name in others}
    run = {"method": method, "lr": 0.05, "num_rounds": 2, "lr_schedule": "constant"}
    changed, usual = (federate(settings(**run, **each))[0] for each in (keys, plain))
    assert all(np.isfinite(array).all() for array in changed.values())
    assert differ(changed, usual), option


def test_a_method_ignores_options_of_other_methods():
    keys = {
        "ntd_tau_squared": False, "spherefed_reduction": "sum-classes", "fedfn_bias": True,
        "fedetf_missing": "exclude", "fedetf_learn_scale": False, "fedetf_scale_init": 10.0,
        "fedgela_normalise": True, "fedgela_temperature": 0.2, "fedexp_evaluate": "last",
        "fedcurv_per_sample": True, "local_etf_frozen": False, "fedexp_step": "feddr+",
        "fednova_correction": "own", "fedcurv_accumulate": True,
    }  # fmt: skip
    for method in ("fedavg", "feddr+"):
        run = {"method": method, "lr": 0.05, "num_rounds": 1}
        assert_same(federate(settings(**run))[0], federate(settings(**run, **keys))[0])


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"spherefed_reduction": "sum"}, "'spherefed-reduction' is 'sum' but must be 'mean' or"),
        ({"fedetf_missing": "drop"}, "'fedetf-missing' is 'drop' but must be 'clamp' or"),
        ({"fedetf_scale_init": 0.0}, "'fedetf-scale-init' is 0.0 but must be greater than 0"),
        ({"fedgela_temperature": -1.0}, "'fedgela-temperature' is -1.0 but must be greater than 0"),
        ({"fedexp_evaluate": "best"}, "'fedexp-evaluate' is 'best' but must be 'average' or"),
        ({"fednova_correction": "scaffold"}, "'fednova-correction' is 'scaffold' but must be"),
        ({"fedexp_step": "code"}, "'fedexp-step' is 'code' but must be 'paper', 'authors' or"),
    ],
)
def test_a_bad_value_is_one_sentence(keys, words):
    with pytest.raises(UserError, match=words) as caught:
        parse_config(settings(**keys))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("method", ["spherefed-ce", "spherefed-ce-ft"])
@pytest.mark.parametrize("scale", ["auto", 15.0])
def test_tau_of_spherefed_ce_is_its_scale_and_a_regulariser_keeps_its_own(method, scale):
    expected = 1.0 if scale == "auto" else scale
    for regulariser, tau in (("moon", 0.5), ("kd", 3.0), ("ntd", 3.0)):
        process = process_of(method, regulariser=regulariser, tau=scale)
        assert (process.objective.regulariser, process.objective.tau) == (regulariser, tau)
        assert process.model.head.scale == expected
    assert process_of("spherefed", regulariser="moon", tau=15.0).objective.tau == 15.0
