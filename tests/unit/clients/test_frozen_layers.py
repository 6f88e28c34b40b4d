"""A network of one's own may have layers that nothing trains, or that its output does not use."""

import numpy as np
import pytest
import torch
from in_process import settings, train_one, work
from safetensors.numpy import load_file
from torch import nn

from clients.state.memory import Memory
from clients.state.store import ClientState
from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError
from fedapp.models import model as models
from fedapp.runtime.process.context import ProcessContext

pytestmark = pytest.mark.usefixtures("few_images")

LR = 0.05


def changed_networks(monkeypatch, change):
    build = models.build_extractor

    def changed(*arguments):
        extractor = build(*arguments)
        change(extractor)
        return extractor

    monkeypatch.setattr(models, "build_extractor", changed)


def trained_and_tested(method, folder, **keys):
    """Let client 0 train a round and be tested; return the process, its start, update, client."""
    process = ProcessContext(parse_config(settings(method=method, batch_size=11, **keys)))
    start = {name: tensor.detach().clone() for name, tensor in process.model.named_parameters()}
    state = ClientState(folder, "run", 0, {"v": "1"})
    client = process.client(0, Memory(state, 1, 0))
    update = work(client, 1, LR)
    client.save_state(update)
    tested = process.client(0, Memory(state, 2, 1))
    received = [array.copy() for array in update.shared.values()]
    tested.evaluate(received, {"server_round": 1, "lr": LR})
    return start, update, tested


@pytest.mark.parametrize(
    "method",
    ["fedavg", "fedavg-ft", "feddr+-ft", "fedper", "fedrep", "ditto", "per-fedavg", "apfl",
     "pfedme", "fedrod", "fedala"],
)  # fmt: skip
def test_a_layer_that_a_network_freezes_is_trained_nowhere(method, tmp_path, monkeypatch):
    def freeze(extractor):
        next(m for m in extractor.modules() if isinstance(m, nn.Conv2d)).requires_grad_(False)

    changed_networks(monkeypatch, freeze)
    start, update, tested = trained_and_tested(method, tmp_path)
    (frozen, *_) = tested.model.frozen
    assert frozen.startswith("extractor.")
    assert torch.equal(dict(tested.model.named_parameters())[frozen], start[frozen])
    if frozen in update.shared:
        np.testing.assert_array_equal(update.shared[frozen], start[frozen])
    others = [name for name in start if name.startswith("extractor.") and name != frozen]
    now = dict(tested.model.named_parameters())
    assert any(not torch.equal(now[name], start[name]) for name in others)


@pytest.mark.parametrize(
    "method", ["fedrep", "fedavg", "fedper", "ditto", "per-fedavg", "apfl", "pfedme", "fedala"]
)
def test_a_network_without_a_trained_layer_leaves_the_head(method, tmp_path, monkeypatch):
    changed_networks(monkeypatch, lambda extractor: extractor.requires_grad_(False))
    start, update, tested = trained_and_tested(method, tmp_path)
    assert update.training.steps > 0
    for name, parameter in tested.model.named_parameters():
        assert torch.equal(parameter, start[name]) == name.startswith("extractor.")


def test_a_fine_tuned_part_without_a_trained_layer_takes_no_step(tmp_path, monkeypatch):
    changed_networks(monkeypatch, lambda extractor: extractor.requires_grad_(False))
    _, update, tested = trained_and_tested("fedavg-ft", tmp_path, finetune_part="body")
    for name, parameter in tested.model.named_parameters():
        np.testing.assert_array_equal(parameter.detach(), update.shared[name])


def test_a_model_of_which_nothing_is_trained_is_a_mistake(tmp_path, monkeypatch):
    """FedBABU's head is frozen, too."""
    changed_networks(monkeypatch, lambda extractor: extractor.requires_grad_(False))
    with pytest.raises(UserError, match="method 'fedbabu' trains no head"):
        trained_and_tested("fedbabu", tmp_path)


@pytest.mark.parametrize("method", ["fedavg", "fedcurv", "apfl", "fedala", "scaffold", "fednova"])
def test_a_parameter_that_the_output_does_not_use_stays(method, tmp_path, monkeypatch):
    changed_networks(monkeypatch, lambda extractor: extractor.register_parameter("unused", spare()))
    start, update, _ = trained_and_tested(method, tmp_path, weight_decay=0.0)
    unused = update.shared["extractor.unused"]
    change = 0.0 if method == "fednova" else start["extractor.unused"].numpy()
    np.testing.assert_array_equal(unused, np.broadcast_to(change, unused.shape))


@pytest.mark.parametrize(
    "method",
    ["scaffold", "fedcurv", "feddyn", "fednova", "fedavg", "fedavgm", "fedadam", "fedexp", "pfedme",
     "fedala", "apfl"],
)  # fmt: skip
def test_a_parameter_that_is_one_number_is_trained(method, tmp_path, monkeypatch):
    def scale(extractor):
        extractor.register_parameter("scale", nn.Parameter(torch.tensor(1.0)))
        extractor.register_forward_hook(lambda module, _, features: features * module.scale)

    changed_networks(monkeypatch, scale)
    own = {"fednova_correction": "own"} if method == "fednova" else {}
    run = train_one(tmp_path, method=method, num_rounds=3, lr=0.0123, **own)
    arrays = load_file(run.model_path)
    assert arrays["extractor.scale"].shape == ()
    assert 0 < abs(arrays["extractor.scale"] - 1) < 0.5


def spare():
    return nn.Parameter(torch.ones(3))
