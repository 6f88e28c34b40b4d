"""Dropout of a package's own backbone: its masks depend on the seed, the round and the client."""

from types import SimpleNamespace

import pytest
import torch
from in_process import assert_same, federate, settings
from torch import nn

from clients.training.model_slot import ModelSlot
from fedapp.models.backbones import BACKBONES, BackboneInfo


def dropping(channels, image_size, norm):
    layers = nn.Linear(channels * image_size**2, 32), nn.ReLU(), nn.Dropout(0.5)
    return nn.Sequential(nn.Flatten(), *layers)


@pytest.fixture(autouse=True)
def backbone(monkeypatch):
    monkeypatch.setitem(BACKBONES, "dropping", BackboneInfo(dropping, 32, False))


@pytest.mark.parametrize("method", ["fedavg", "fedrep", "ditto", "per-fedavg", "fedavg-ft"])
def test_dropout_does_not_depend_on_the_nodes_of_a_run(method):
    run = settings(method=method, model="dropping", lr=0.05)
    (one, few, _), (other, many, _) = (federate(run, nodes=n, seed=n) for n in (1, 7))
    assert_same(one, other)
    assert few.report.train_loss == many.report.train_loss
    assert few.report.client_accuracy == many.report.client_accuracy


def test_training_leaves_torchs_generator_as_it_was():
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    federate(settings(model="dropping", num_rounds=1, method="fedavg", lr=0.05))
    assert torch.equal(torch.rand(4), expected)


def test_on_a_gpu_its_own_generator_is_seeded_and_restored(monkeypatch):
    seeds: list[int] = []
    generator = SimpleNamespace(manual_seed=seeds.append)
    restored = []
    fork = torch.random.fork_rng
    monkeypatch.setattr(torch.cuda, "default_generators", (None, generator))
    monkeypatch.setattr(
        torch.random, "fork_rng", lambda devices: restored.extend(devices) or fork(devices=[])
    )
    monkeypatch.setattr(ModelSlot, "device", torch.device("cuda", 1))
    with ModelSlot(nn.Linear(1, 1), {}, None, None).seeded(5):  # type: ignore[arg-type]
        pass
    assert seeds == [5]
    assert restored == [torch.device("cuda", 1)]
