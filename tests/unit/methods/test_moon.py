"""MOON: neutral at mu = 0, its contrast by hand, and the previous model of any base method."""

import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from in_process import InProcessGrid, assert_same, differ, federate, settings, work
from safetensors.numpy import load_file

from clients import losses
from clients.state import previous_model
from fedapp import server_app
from fedapp.analysis.saved_runs import SavedRun
from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError
from fedapp.models.backbones import BACKBONES
from fedapp.models.initial import load_initial
from fedapp.models.model import build_model
from fedapp.results.run_directory import RunDirectory
from fedapp.runtime.process.context import ProcessContext

RUN = {"lr": 0.05, "lr_schedule": "constant", "batch_size": 48}
PROJECTED = {"bottleneck": 16, "bottleneck_layers": 2}


def client_of(run, server_round, accepted=0):
    process = ProcessContext(parse_config(run))
    return process, process.client(3, process.memory(3, "run", server_round, accepted))


def test_without_weight_it_is_fedavg_bit_for_bit():
    parent = federate(settings(method="fedavg", **RUN))[0]
    assert_same(federate(settings(method="moon", mu=0.0, **RUN))[0], parent)
    assert differ(federate(settings(method="moon", **RUN))[0], parent)


def test_a_client_with_initial_weights_of_its_own_is_first_pulled_from_these():
    run = settings(
        method="local-hetero", regulariser="moon", init_per_client=True, num_clients=4,
        partition="dirichlet", participation=1.0, feature_dim=16,
    )  # fmt: skip
    client = ProcessContext(parse_config(run)).client(3)
    client.prepare(1)
    previous = client.frozen_models().previous
    assert not previous.training
    for own, first in zip(client.model.parameters(), previous.parameters(), strict=True):
        assert torch.equal(own, first)
        assert not first.requires_grad


def test_the_papers_defaults():
    config = parse_config(settings(method="moon"))
    assert (config.mu, config.tau) == (1.0, 0.5)
    assert parse_config(settings(method="dr", regulariser="moon")).tau == 0.5
    assert parse_config(settings(method="dr", regulariser="kd")).tau == 3.0


@pytest.mark.parametrize("layers", [{}, PROJECTED])
@pytest.mark.parametrize("later", [False, True])
def test_a_batch_is_contrasted_with_the_received_and_the_own_last_model(later, layers):
    """Cross-entropy + mu l_con of three models' features, written out without the client."""
    run = settings(method="moon", **RUN, **layers)
    process, client = client_of(run, 1)
    received = client.get_parameters({})
    if later:
        update = client.work(dict(zip(client.shared, received, strict=True)), 1, 0.05)
        client.save_state(update)
        own = [array.copy() for array in client.get_parameters({})]
        process, client = client_of(run, 5, accepted=1)
    moved = [array + np.float32(0.01) for array in received]  # the model of a later round
    client.set_parameters(moved)
    client.copy_to_teacher()
    inputs, labels = next(iter(client.data.training(5)()))
    seen = []

    def gradients(forward, objective):
        seen.append(objective(forward()))
        return seen[-1].detach()

    client.gradients = gradients
    client.data = replace(client.data, training=lambda _: lambda: [(inputs, labels)])
    client.run(5, 0.05)  # the loop has a loss and no gradient to step with
    plain = process.new_model().eval()

    def features(arrays):
        with torch.no_grad():
            for tensor, array in zip(plain.parameters(), arrays, strict=True):
                tensor.copy_(torch.from_numpy(array))
            return plain(inputs)

    local, logits = features(moved)
    previous = features(own if later else received)[0]
    expected = losses.cross_entropy(logits, labels)
    expected = expected + 1.0 * losses.moon_contrastive(local, features(moved)[0], previous, 0.5)
    assert seen[0].item() == pytest.approx(expected.item(), rel=1e-6)


def trained(run):
    """Let client 3 train round 1, and return it as round 4 finds it."""
    _, client = client_of(run, 1)
    update = work(client)
    client.save_state(update)
    process, later = client_of(run, 4, accepted=1)
    own, previous = previous_model.split(later.memory.load())
    assert later.stored_state.keys() == own.keys()
    stored = [*own.values(), *previous.values()]
    assert sum(array.nbytes for array in stored) == later.state_bytes()
    assert previous.keys() == set(process.model.state_dict())
    return later, own


@pytest.mark.parametrize("base", ["fedavg", "fedbabu", "spherefed", "fedetf", "fedgela", "dr"])
def test_as_a_regulariser_it_keeps_the_previous_model_of_any_base(base):
    client, own = trained(settings(method=base, regulariser="moon", beta=0.5))
    assert client.objective.needs_previous
    assert not own


def test_beside_a_method_with_a_state_of_its_own_both_are_kept():
    client, own = trained(settings(method="scaffold", regulariser="moon", beta=0.5))
    assert own.keys() == client.trained.keys()


def test_a_run_with_it_as_a_regulariser_keeps_states_and_the_same_bits_on_any_nodes():
    run = settings(method="dr", regulariser="moon", beta=0.5, **RUN)
    final, strategy, _ = federate(run, nodes=1)
    assert strategy.state_key
    assert_same(final, federate(run, nodes=10, seed=4)[0])
    assert differ(final, federate({**run, "beta": 1.0})[0])


@pytest.mark.parametrize("backbone", BACKBONES)
def test_the_projection_head_is_two_layers_on_the_same_body_under_the_classifier(backbone):
    """Features are l2(relu(l1(h))) of the backbone's h, and the classifier stands on them."""
    plain, projected = (
        build_model(backbone, "linear", 1, 8, 10, seed=3, bottleneck=wide, bottleneck_layers=2)
        for wide in (0, 24)
    )
    images = torch.rand(4, 1, 8, 8)
    width = BACKBONES[backbone].feature_dim
    shapes = {n: list(t.shape) for n, t in projected.state_dict().items() if n.startswith("bott")}
    assert shapes == {
        "bottleneck.0.weight": [width, width], "bottleneck.0.bias": [width],
        "bottleneck.2.weight": [24, width], "bottleneck.2.bias": [24],
    }  # fmt: skip
    first, _, second = projected.bottleneck
    hidden = torch.relu(plain(images)[0] @ first.weight.T + first.bias)
    features, logits = projected(images)
    torch.testing.assert_close(features, hidden @ second.weight.T + second.bias)
    torch.testing.assert_close(logits, features @ projected.head.weight.T + projected.head.bias)
    assert (features < 0).any()


def test_the_projection_head_is_averaged_saved_measured_and_started_from(tmp_path):
    run = settings(
        method="moon", **RUN, **PROJECTED, output_dir=str(tmp_path), run_name="projected",
        checkpoint_every=1, keep_state=True, state_dir=str(tmp_path),
    )  # fmt: skip
    final, _, history = federate(run, nodes=1)
    assert_same(final, federate(run, nodes=7, seed=4)[0])
    assert not np.array_equal(history[0]["bottleneck.0.weight"], final["bottleneck.0.weight"])
    server_app.run(InProcessGrid(run, 3), run, "", time.monotonic())
    assert_same(final, {n: load_file(tmp_path / "projected/model.safetensors")[n] for n in final})
    saved = SavedRun(RunDirectory.load(tmp_path / "projected"))
    assert saved.measure(2, ["drift"], 2)["measures"]["drift"]["mean"]["distance_observed"] > 0
    again = {**run, "initial-model": str(tmp_path / "projected"), "run-name": "on"}
    started = ProcessContext(parse_config(again)).model.state_dict()
    assert_same({n: started[n].numpy() for n in final}, final)
    for key, value, words in (
        ("bottleneck", 8, r"'bottleneck.2.weight' is \[8, 512\] and \[16, 512\]"),
        ("bottleneck-layers", 1, "'bottleneck.weight' is .* and nothing in the file"),
    ):
        with pytest.raises(UserError, match=words):
            ProcessContext(parse_config({**again, key: value}))


def test_a_projection_head_on_weights_of_a_backbone_alone_is_new(tmp_path):
    from torchvision.models import resnet18

    torch.save(resnet18(weights=None).state_dict(), tmp_path / "weights.pth")
    new, started = (
        build_model("resnet18-imagenet-stem", "linear", 3, 32, 10, 0, bottleneck=16) for _ in "ab"
    )
    load_initial(started, tmp_path / "weights.pth")
    assert torch.equal(started.bottleneck.weight, new.bottleneck.weight)
    assert not torch.equal(started.extractor.conv1.weight, new.extractor.conv1.weight)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"method": "moon", "bottleneck_layers": 2}, "set it too, such as to 256 for MOON"),
        ({"method": "moon", "bottleneck_layers": 3, "bottleneck": 9}, "3 but must be 1 or 2"),
        ({"method": "feddor", "bottleneck_layers": 2}, "architectures of their own; leave it at 1"),
    ],
)
def test_impossible_layers_are_refused_with_a_reason(keys, words):
    with pytest.raises(UserError, match=words):
        parse_config(settings(**keys))
