"""Factored gradients: the training of plain gradients, and nothing left behind."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from clients.base import LocalClient
from clients.training import factored as module
from clients.training.factored import factored
from clients.training.local_training import FrozenModels, LocalSettings, backward, train
from clients.training.objective import Objective
from clients.training.sgd import FusedSGD
from fedapp.models.model import build_model


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Let every linear layer count as large, in blocks of a few rows and a shorter last one."""
    monkeypatch.setattr(module, "_FEWEST_WEIGHTS", 1)
    monkeypatch.setattr(module, "_BLOCK", 3000)
    monkeypatch.setattr(module, "_DEFERRED_ROWS", 70)


def _epoch(sizes=(9, 1, 40, 30)):
    generator = torch.Generator().manual_seed(1)
    images, labels = torch.randn(80, 1, 8, 8, generator=generator), torch.arange(80) % 3
    return lambda: zip(images.split(sizes), labels.split(sizes), strict=True)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("regulariser", [None, "prox"])
@pytest.mark.parametrize("sizes", [
    (9, 1, 40, 30), (8,) * 10, (16,) * 5, (20, 12, 16, 16, 16), (40, 40),
], ids=str)  # fmt: skip
def test_factors_train_what_gradients_train(momentum, regulariser, sizes):
    """A proximal term's own gradient of the weight is added to the factors' product.

    The steps on up to 16 images at the beginning are deferred: all of an epoch, some, or none.
    """
    models = [build_model("cnn", "linear", 1, 8, 3, seed=5) for _ in range(2)]
    frozen = FrozenModels(build_model("cnn", "linear", 1, 8, 3, seed=6).eval())
    objective = Objective("ce", regulariser, reg_weight=0.1)
    settings = LocalSettings(2, momentum, 1e-3)
    used = []

    def plain(forward, objective):
        used.append(1)
        return backward(forward, objective)

    for model, rule in zip(models, (backward, plain), strict=True):
        train(model, frozen, objective, _epoch(sizes), 0.1, settings, rule)
    assert len(used) == 2 * len(sizes)
    weights = [model.get_parameter("extractor.7.weight") for model in models]
    assert [weight.grad is None for weight in weights] == [regulariser is None, False]
    for own, other in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-6)


def test_a_layer_used_twice_has_the_sum_of_both_gradients():
    torch.manual_seed(0)
    layer, inputs = nn.Linear(30, 200), torch.randn(2, 7, 30)
    reference = nn.Linear(30, 200)
    reference.load_state_dict(layer.state_dict())
    with factored(layer, defer=False) as weights:
        optimiser = FusedSGD(list(layer.parameters()), 0.1, 0.9, 0.0, None, weights)
        (layer(inputs[0]).relu().sum() + layer(inputs[1]).square().sum()).backward()
        assert layer.weight.grad is None
        assert len(weights[layer.weight].factors) == 2
        optimiser.step()
        optimiser.zero_grad()
        assert not weights[layer.weight].factors
    (reference(inputs[0]).relu().sum() + reference(inputs[1]).square().sum()).backward()
    FusedSGD(list(reference.parameters()), 0.1, 0.9, 0.0).step()
    torch.testing.assert_close(layer.weight, reference.weight)
    torch.testing.assert_close(layer.bias, reference.bias)


def test_only_float_layers_that_are_trained_are_factored_and_all_are_restored():
    layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4).double())
    layers[0].weight.requires_grad_(False)
    inputs = torch.randn(3, 4)
    with factored(layers, defer=True) as weights:
        assert list(weights) == [layers[1].weight]
        with torch.no_grad():
            assert torch.equal(layers[1](inputs), F.linear(inputs, *layers[1].parameters()))
        layers[1](inputs.expand(2, 3, 4)).sum().backward()  # not a matrix: as usual
        assert layers[1].weight.grad is not None
    assert all("forward" not in vars(layer) for layer in layers)


@pytest.mark.parametrize("settings", [
    LocalSettings(1, clip_norm=1.0), LocalSettings(1, precision="bf16"),
])  # fmt: skip
def test_clipped_and_bfloat16_training_has_whole_gradients(settings, monkeypatch):
    monkeypatch.setattr("clients.training.local_training.factored", None)  # a call would fail
    model = build_model("cnn", "linear", 1, 8, 3, seed=5)
    assert train(model, FrozenModels(), Objective(), _epoch(), 0.1, settings).steps == 4


def test_a_layer_without_bias_can_be_all_that_is_trained():
    torch.manual_seed(0)
    layer = nn.Linear(30, 200, bias=False)
    before, inputs = layer.weight.detach().clone(), torch.randn(7, 30)
    with factored(layer, defer=True) as weights:
        optimiser = FusedSGD([layer.weight], 0.1, 0.0, 0.0, None, weights)
        layer(inputs).sum().backward()
        optimiser.step()
    torch.testing.assert_close(layer.weight.detach(), before - 0.1 * inputs.sum(0))


def test_only_clients_without_a_rule_of_their_own_need_no_whole_gradients():
    class Own(LocalClient):
        def gradients(self, forward, objective):
            return super().gradients(forward, objective)

    for kind, expected in ((LocalClient, backward), (Own, None)):
        client = object.__new__(kind)
        assert client._gradients() == (expected or client.gradients)
