"""FedSAM: its step is the rule written in plain PyTorch, and FedAvg's without a perturbation."""

import torch
from in_process import assert_same, differ, federate, settings
from torch.nn.functional import cross_entropy

from clients.training.local_training import FrozenModels
from fedapp.config.resolve import parse_config
from fedapp.runtime.process.context import ProcessContext


def test_one_step_is_the_rule_written_in_plain_pytorch():
    config = settings(method="fedsam", lr=0.05, momentum=0.0, fedsam_rho=0.7)
    process = ProcessContext(parse_config(config))
    client, own = process.client(0), process.new_model()
    images, labels = next(iter(client.data.training(1)()))
    cross_entropy(own(images)[1], labels).backward()
    norm = torch.sqrt(sum(p.grad.square().sum() for p in own.parameters()))
    kept = [p.detach().clone() for p in own.parameters()]
    with torch.no_grad():
        for parameter in own.parameters():
            parameter += 0.7 * parameter.grad / norm
    own.zero_grad()
    cross_entropy(own(images)[1], labels).backward()
    expected = [w - 0.05 * (p.grad + 1e-5 * w) for w, p in zip(kept, own.parameters(), strict=True)]
    client.data.__dict__["training"] = lambda server_round: lambda: [(images, labels)]
    client.run(1, 0.05)
    for parameter, value in zip(process.model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.detach(), value, rtol=1e-3, atol=1e-6)


def test_without_a_perturbation_it_is_fedavg_bit_for_bit():
    run = {"lr": 0.05, "num_rounds": 2}
    plain = federate(settings(method="fedavg", **run))[0]
    assert_same(plain, federate(settings(method="fedsam", fedsam_rho=0.0, **run))[0])
    assert differ(plain, federate(settings(method="fedsam", **run))[0])


def test_running_statistics_follow_the_first_pass_only():
    """One batch per client: the first pass of one step sees the received model, as FedAvg does."""
    run = {"model": "resnet10", "bn": "running", "lr": 0.05, "num_clients": 10, "num_rounds": 1}
    run |= {"participation": 0.1, "batch_size": 1000}
    plain = federate(settings(method="fedavg", **run))[0]
    moved = federate(settings(method="fedsam", fedsam_rho=0.5, **run))[0]
    statistics = [name for name in plain if "running" in name]
    assert statistics
    assert_same({n: plain[n] for n in statistics}, {n: moved[n] for n in statistics})
    assert differ(plain, moved)


def test_frozen_models_see_each_batch_once(monkeypatch):
    calls = []
    real = FrozenModels.forward
    monkeypatch.setattr(FrozenModels, "forward", lambda *args: (calls.append(1), real(*args))[1])
    run = settings(method="fedsam", regulariser="kd", beta=0.9, num_rounds=1, participation=0.1)
    strategy = federate(run)[1]
    assert len(calls) == sum(result.steps for result in strategy.report.results)
