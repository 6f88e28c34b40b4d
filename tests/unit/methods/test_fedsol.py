"""FedSOL: its perturbation, and its step compared with the rule in plain PyTorch."""

import numpy as np
import pytest
import torch
from in_process import assert_same, federate, settings
from reference import VECTORS, tensor

from clients.fedsol import perturbation
from clients.losses import cross_entropy, kd_to_ntd, knowledge_distillation, not_true_distillation
from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError
from fedapp.methods.row import ADD, LossSpec
from fedapp.methods.table import METHODS
from fedapp.runtime.process.context import ProcessContext

VECTOR = VECTORS["server"]["FedSOL_perturbation"]


@pytest.mark.parametrize("kind", ["adaptive", "fixed"])
def test_the_perturbation_is_the_published_one(kind):
    weights, anchors = (
        [tensor(VECTOR[f"{name}{end}"]) for name in ("W", "b")] for end in ("", "_global")
    )
    for weight, name in zip(weights, ("W", "b"), strict=True):
        weight.grad = tensor(VECTOR[f"g_prox_{name}"])
    moves = perturbation(weights, anchors, VECTOR["rho"], kind == "adaptive")
    np.testing.assert_allclose(moves[0], VECTOR[f"eps_W_{kind}"], rtol=1e-9, atol=1e-12)
    if kind == "adaptive":
        np.testing.assert_allclose(moves[1], VECTOR["eps_b_adaptive"], rtol=1e-9, atol=1e-12)


def test_at_the_received_model_nothing_moves_and_nothing_is_nan():
    weight = torch.ones(3, 2)
    weight.grad = torch.zeros(3, 2)
    for adaptive in (True, False):
        assert torch.equal(perturbation([weight], [weight], 2.0, adaptive)[0], torch.zeros(3, 2))


@pytest.mark.parametrize("adaptive", [True, False])
def test_the_first_step_of_a_round_is_fedavgs(adaptive):
    """The pull's gradient at the received model is a rounding error, which has no direction."""
    run = {"batch_size": 1000, "lr": 0.05, "dataset": "digits"}
    one, other = (
        ProcessContext(
            parse_config(settings(method=method, fedsol_adaptive=adaptive, **run))
        ).client(0)
        for method in ("fedsol", "fedavg")
    )
    received = [array + np.float32(0.02) for array in one.get_parameters({})]
    config = {"server_round": 1, "lr": 0.05}
    sent, plain = one.fit(received, config), other.fit(received, config)
    assert sent[2]["steps"] == plain[2]["steps"] == 1
    for array, expected in zip(sent[0], plain[0], strict=True):
        np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize(
    ("rho", "adaptive", "part"),
    [(2.0, True, "all"), (0.7, False, "all"), (0.7, True, "head"), (1.3, False, "body")],
)
def test_one_step_is_the_rule_written_in_plain_pytorch(rho, adaptive, part):
    keys = {"fedsol_rho": rho, "fedsol_adaptive": adaptive, "fedsol_part": part}
    run = settings(method="fedsol", lr=0.05, momentum=0.0, **keys)
    process = ProcessContext(parse_config(run))
    client = process.client(0)
    received = client.get_parameters({})
    own, teacher = process.new_model(), process.new_model()
    for model in (process.model, own):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.01 * torch.cos(torch.arange(parameter.numel())).view_as(parameter)
    images, labels = next(iter(client.data.training(1)()))
    log_own = torch.log_softmax(own(images)[1] / 3, 1)
    with torch.no_grad():
        probabilities = torch.softmax(teacher(images)[1] / 3, 1)
    (-(probabilities * log_own).sum(1).mean()).backward()
    moved = {
        name: parameter
        for name, parameter in own.named_parameters()
        if part == "all" or name.startswith("head.") == (part == "head")
    }
    norm = torch.sqrt(sum(p.grad.square().sum() for p in moved.values()))
    kept = [p.detach().clone() for p in own.parameters()]
    with torch.no_grad():
        for name, parameter in moved.items():
            difference = (parameter - teacher.get_parameter(name)).abs()
            share = difference / difference.square().sum(0).sqrt() if adaptive else 1.0
            parameter += rho * share * parameter.grad / norm
    own.zero_grad()
    cross_entropy(own(images)[1], labels).backward()
    expected = [w - 0.05 * (p.grad + 1e-5 * w) for w, p in zip(kept, own.parameters(), strict=True)]
    for anchor, array in zip(process.slot.teacher.parameters(), received, strict=True):
        assert np.array_equal(anchor.numpy(), array)
    client.data.__dict__["training"] = lambda server_round: lambda: [(images, labels)]
    client.run(1, 0.05)
    for parameter, value in zip(process.model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.detach(), value, rtol=2e-3, atol=2e-6)


def test_another_regulariser_is_refused():
    with pytest.raises(UserError, match="already has the regulariser 'kd'"):
        parse_config(settings(method="fedsol", regulariser="fd"))


def test_it_is_refused_without_its_regulariser():
    with pytest.raises(UserError, match=r"'none' but .* along 'kd'; .* 'fedsol-rho' to 0"):
        parse_config(settings(method="fedsol", regulariser="none"))


def test_running_statistics_follow_the_first_pass_only():
    run = {"model": "resnet10", "bn": "running", "lr": 0.05, "num_clients": 10, "num_rounds": 1}
    run |= {"participation": 0.1, "batch_size": 50}
    plain = federate(settings(method="fedavg", **run))[0]
    assert_same(plain, federate(settings(method="fedsol", fedsol_rho=0.0, **run))[0])


def test_kd_to_ntd_is_kd_at_one_end_and_ntd_at_the_other():
    generator = torch.Generator().manual_seed(0)
    received = torch.randn(6, 5, generator=generator)
    labels = torch.arange(6) % 5
    ends = {
        0.0: lambda z: knowledge_distillation(z, received, 2.0),
        1.0: lambda z: not_true_distillation(z, received, labels, 2.0),
    }
    for share, function in ends.items():
        gradients = []
        for loss in (function, lambda z, s=share: kd_to_ntd(z, received, labels, 2.0, s)):
            logits = torch.linspace(-1, 1, 30).view(6, 5).requires_grad_()
            loss(logits).backward()
            gradients.append(logits.grad)
        assert torch.equal(*gradients)


def test_kd_ntd_without_ntd_is_ce_plus_kd(monkeypatch):
    from dataclasses import replace

    row = replace(METHODS["kd-ntd"], loss=LossSpec(regulariser="kd", combine=ADD))
    run = {"lr": 0.05, "num_rounds": 2}
    with monkeypatch.context() as patch:
        patch.setitem(METHODS, "ce+kd", row)
        plain = federate(settings(method="ce+kd", **run))[0]
    assert_same(plain, federate(settings(method="kd-ntd", kd_ntd_lambda=0.0, **run))[0])
