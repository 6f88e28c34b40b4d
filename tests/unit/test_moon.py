"""MOON: neutral at mu = 0, its contrast by hand, and the previous model of any base method."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from in_process import assert_same, differ, federate, settings

from clients import losses, previous_model
from fedapp.config import RunConfig
from fedapp.node import Node
from strategies.records import Task

RUN = {"lr": 0.05, "lr_schedule": "constant", "batch_size": 48}


def client_of(run, server_round, known=()):
    node = Node(RunConfig.parse(run))
    asked = Task(server_round, (3,), 0.05, "size", 100, 1, "run", known)
    return node, node.client(3, node.memory(3, asked, server_round))


def test_without_weight_it_is_fedavg_bit_for_bit():
    parent = federate(settings(method="fedavg", **RUN))[0]
    assert_same(federate(settings(method="moon", mu=0.0, **RUN))[0], parent)
    assert differ(federate(settings(method="moon", **RUN))[0], parent)


def test_the_papers_defaults():
    config = RunConfig.parse(settings(method="moon"))
    assert (config.mu, config.tau) == (1.0, 0.5)
    assert RunConfig.parse(settings(method="dr", regulariser="moon")).tau == 0.5
    assert RunConfig.parse(settings(method="dr", regulariser="kd")).tau == 3.0


@pytest.mark.parametrize("later", [False, True])
def test_a_batch_is_contrasted_with_the_received_and_the_own_last_model(later):
    """Cross-entropy + mu l_con of three models' features, written out without the client."""
    run = settings(method="moon", **RUN)
    node, client = client_of(run, 1)
    received = client.get_parameters({})
    if later:
        client.fit(received, {"server_round": 1, "lr": 0.05})
        client.remember()
        own = [array.copy() for array in client.get_parameters({})]
        node, client = client_of(run, 5, known=(3,))
    moved = [array + np.float32(0.01) for array in received]  # the model of a later round
    client.set_parameters(moved)
    client.keep_start()
    inputs, labels = next(iter(client.data.training(5)()))
    seen = []
    client.gradients = lambda forward, objective: seen.append(objective(forward())) or seen[-1]
    client.data = replace(client.data, training=lambda _: lambda: [(inputs, labels)])
    with pytest.raises(TypeError):  # the loop has a loss and no gradient to step with
        client.train(5, 0.05, client.objective)
    plain = node.new_model().eval()

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
    client.fit(client.get_parameters({}), {"server_round": 1, "lr": 0.05})
    client.remember()
    node, later = client_of(run, 4, known=(3,))
    own, previous = previous_model.split(later.memory.load())
    assert later.recalled.keys() == own.keys()
    stored = [*own.values(), *previous.values()]
    assert sum(array.nbytes for array in stored) == later.state_bytes()
    assert previous.keys() == set(node.model.state_dict())
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
