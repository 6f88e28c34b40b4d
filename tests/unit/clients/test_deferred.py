"""Deferred steps: those of SGD, and nobody sees a weight without them."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from clients.training import deferred as module
from clients.training import factored as large
from clients.training.deferred import DeferredSteps, product
from clients.training.factored import CurrentParameters, factored
from clients.training.local_training import FrozenModels, LocalSettings, backward, train
from clients.training.objective import BASE_LOSSES, Objective
from clients.training.sgd import FusedSGD
from fedapp.models.model import build_model

WEIGHT = "extractor.7.weight"


@pytest.fixture(autouse=True)
def every_layer_is_large(monkeypatch):
    monkeypatch.setattr(large, "_FEWEST_WEIGHTS", 1)


@pytest.fixture
def model():
    return build_model("cnn", "linear", 1, 8, 3, seed=5)


def _batches(count: int):
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(4 * count, 1, 8, 8, generator=generator)
    return list(zip(images.split(4), (torch.arange(4 * count) % 3).split(4), strict=True))


def test_steps_passes_and_the_end_are_those_of_sgd():
    torch.manual_seed(0)
    layer, lr, momentum, decay = nn.Linear(30, 20), 0.1, 0.9, 0.01
    reference = layer.weight.detach().clone().requires_grad_()
    optimiser = torch.optim.SGD([reference], lr, momentum, weight_decay=decay)
    steps = DeferredSteps(layer.weight, 12)
    for rows in (5, 1, 6):
        inputs, of_outputs = torch.randn(rows, 30), torch.randn(rows, 20)
        with torch.no_grad():
            torch.testing.assert_close(
                steps.outputs(inputs, layer.bias), F.linear(inputs, reference, layer.bias)
            )
            torch.testing.assert_close(steps.gradient_of_inputs(of_outputs), of_outputs @ reference)
        assert steps.has_room(rows)
        steps.step(of_outputs, inputs, lr, momentum, decay)
        reference.grad = of_outputs.t() @ inputs
        optimiser.step()
    assert not steps.has_room(1)
    velocity = torch.full_like(layer.weight, torch.nan)
    steps.settle(velocity)
    torch.testing.assert_close(layer.weight, reference)
    torch.testing.assert_close(velocity, optimiser.state[reference]["momentum_buffer"])


def test_without_steps_nothing_is_written():
    layer = nn.Linear(3, 2)
    before, velocity = layer.weight.detach().clone(), torch.full((2, 3), 7.0)
    DeferredSteps(layer.weight, 4).settle(velocity)
    assert torch.equal(layer.weight, before)
    assert torch.equal(velocity, torch.full((2, 3), 7.0))


def test_products_are_those_of_pytorch_also_without_onednn(monkeypatch):
    torch.manual_seed(0)
    inputs, weight, bias = torch.randn(5, 30), torch.randn(30, 20).t(), torch.randn(20)
    for known in (module._ONEDNN, False):
        monkeypatch.setattr(module, "_ONEDNN", known)
        torch.testing.assert_close(product(inputs, weight, bias), F.linear(inputs, weight, bias))
        torch.testing.assert_close(product(inputs, weight), inputs @ weight.t())


def test_a_loss_that_reads_the_weights_sees_all_steps(monkeypatch):
    def seen_by(rule) -> list[torch.Tensor]:
        model, seen = build_model("cnn", "linear", 1, 8, 3, seed=5), []
        place = [name for name, _ in model.named_parameters()].index(WEIGHT)

        def loss(step):
            if next(number) >= 2:  # the first two steps are deferred
                seen.append(step.parameters[place].detach().clone())
            return F.cross_entropy(step.logits, step.labels)

        number = iter(range(5))
        monkeypatch.setitem(BASE_LOSSES, "reading", loss)
        objective = Objective("reading")
        train(model, FrozenModels(), objective, lambda: _batches(5), 0.1, LocalSettings(1), rule)
        return seen

    deferred, plain = seen_by(backward), seen_by(lambda *step: backward(*step))
    assert len(deferred) == len(plain) == 3
    for own, expected in zip(deferred, plain, strict=True):
        torch.testing.assert_close(own, expected)


def test_the_next_epoch_and_an_evaluation_between_steps_see_all_steps(model):
    """What reads the model before an epoch changes no bit, so an analysis can watch a run."""
    watched, seen = build_model("cnn", "linear", 1, 8, 3, seed=5), []
    images = torch.randn(2, 1, 8, 8)

    def epoch():
        seen.append((watched.get_parameter(WEIGHT).detach().clone(), watched(images)))
        return _batches(4)

    settings = LocalSettings(3)
    train(watched, FrozenModels(), Objective(), epoch, 0.1, settings)
    train(model, FrozenModels(), Objective(), lambda: _batches(4), 0.1, settings)
    assert torch.equal(watched.get_parameter(WEIGHT), model.get_parameter(WEIGHT))
    for weight, (features, _) in seen[1:]:
        assert not torch.equal(weight, seen[0][0])
        assert features.isfinite().all()


def test_an_interrupted_training_leaves_the_weights_of_its_last_step(model):
    whole = build_model("cnn", "linear", 1, 8, 3, seed=5)

    def three():
        yield from _batches(3)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(model, FrozenModels(), Objective(), three, 0.1, LocalSettings(1))
    train(whole, FrozenModels(), Objective(), lambda: _batches(3), 0.1, LocalSettings(1))
    assert torch.equal(model.get_parameter(WEIGHT), whole.get_parameter(WEIGHT))


def test_only_steps_from_velocity_zero_are_deferred():
    layer, inputs = nn.Linear(3, 2), torch.ones(1, 3)
    for defer in (True, False):
        with factored(layer, defer) as weights:
            optimiser = FusedSGD(list(layer.parameters()), 0.1, 0.9, 0.0, None, weights)
            current = CurrentParameters(optimiser.parameters, weights)
            for deferred in (defer, False):
                before = layer.weight.detach().clone()
                optimiser.zero_grad()
                layer(inputs).sum().backward()
                optimiser.step()
                assert torch.equal(layer.weight, before) is deferred
                assert len(current) == 2
                assert not torch.equal(current[0], before)  # this ends the deferring
