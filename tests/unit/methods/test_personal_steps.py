"""Personal methods step by step: the loops that their papers print, in plain PyTorch."""

import copy

import numpy as np
import pytest
import torch
from in_process import work
from test_personal_mixtures import LR, ce, process_of

from clients.state.memory import Memory
from clients.state.store import ClientState
from clients.training.local_training import LossDiverged, step_of

pytestmark = pytest.mark.usefixtures("few_images")


def sgd(module):
    return torch.optim.SGD(module.parameters(), LR, 0.9, weight_decay=1e-5)


def close(model, expected, rtol=1e-4, atol=1e-6):
    for (name, one), other in zip(model.named_parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(one.detach(), other.detach(), rtol=rtol, atol=atol, msg=name)


@pytest.mark.parametrize("reference", [False, True])
def test_dittos_personal_model_is_pulled_at_the_rate_times_lambda(reference, tmp_path):
    keys = {"ditto_lambda": 0.4, "ditto_reference": reference, "lr": LR}
    process = process_of("ditto", local_epochs=2, **keys)
    client = process.client(0, Memory(ClientState(tmp_path, "run", 0, {"v": "1"}), 1, 0))
    start = process.new_model()
    update = work(client, 1, LR)
    own, shared = copy.deepcopy(start), copy.deepcopy(start)
    if reference:  # the anchor is the locally trained model
        optimiser, epoch = sgd(shared), client.data.training(1)
        for images, labels in (batch for _ in range(2) for batch in epoch()):
            optimiser.zero_grad()
            ce(shared(images)[1], labels).backward()
            optimiser.step()
    optimiser, epoch = sgd(own), client.data.training(1)
    for images, labels in (batch for _ in range(2) for batch in epoch()):
        optimiser.zero_grad()
        ce(own(images)[1], labels).backward()
        with torch.no_grad():
            for v, w in zip(own.parameters(), shared.parameters(), strict=True):
                v -= LR * 0.4 * (v - w)
        optimiser.step()
    for name, value in own.named_parameters():
        np.testing.assert_allclose(update.state[name], value.detach(), rtol=1e-3, atol=1e-5)


def test_a_step_of_adaptation_that_diverges_gives_no_accuracy():
    """Its only loss is that before the step, which is finite."""
    client = process_of("per-fedavg").client(0)
    with pytest.raises(LossDiverged, match="the loss of its model is nan on its test images"):
        client.evaluate(client.get_parameters({}), {"server_round": 1, "lr": 1e38})


@pytest.mark.parametrize("epochs", [0, 2])
def test_per_fedavg_adapts_before_its_test(epochs):
    process = process_of("per-fedavg", per_fedavg_adapt_epochs=epochs)
    client, expected = process.client(0), process.new_model()
    epoch = client.data.tuning(3)
    batches = [batch for _ in range(epochs or 1) for batch in epoch()]
    client.evaluate(client.get_parameters({}), {"server_round": 3, "lr": LR})
    for images, labels in batches if epochs else batches[:1]:
        expected.zero_grad()
        ce(expected(images)[1], labels).backward()
        with torch.no_grad():
            for parameter in expected.parameters():
                parameter -= LR * parameter.grad
    close(client.model, expected)


def test_fedrep_trains_head_and_body_before_its_test():
    process = process_of("fedrep", local_epochs=2)
    client, expected = process.client(0), process.new_model()
    epoch = client.data.tuning(3)
    client.evaluate(client.get_parameters({}), {"server_round": 3, "lr": LR})
    for part, epochs in ((expected.head, 2), (expected.extractor, 1)):
        optimiser = sgd(part)
        for images, labels in (batch for _ in range(epochs) for batch in epoch()):
            expected.zero_grad()
            ce(expected(images)[1], labels).backward()
            optimiser.step()
    close(client.model, expected)


def test_the_steps_of_apfls_own_model_are_clipped_too(tmp_path):
    process = process_of("apfl", local_epochs=1, clip_norm=1e-3, momentum=0.0, weight_decay=0.0)
    client = process.client(0, Memory(ClientState(tmp_path, "run", 0, {"v": "1"}), 1, 0))
    start = {n: p.detach().numpy().copy() for n, p in process.new_model().named_parameters()}
    update = work(client, 1, LR)
    moved = [update.state[f"own.{name}"] - array for name, array in start.items()]
    length = np.sqrt(sum(np.square(each).sum() for each in moved))
    assert 0 < length <= 1.01 * LR * 1e-3 * update.training.steps


def test_the_own_head_of_fedrod_decays_with_the_runs_weight_decay(tmp_path):
    heads = []
    for decay in (0.0, 0.5):
        process = process_of("fedrod", local_epochs=3, weight_decay=decay)
        folder = tmp_path / f"{decay}"
        client = process.client(0, Memory(ClientState(folder, "run", 0, {"v": "1"}), 1, 0))
        heads.append(work(client, 1, LR).state["weight"])
    assert np.linalg.norm(heads[1]) < 0.9 * np.linalg.norm(heads[0])


def test_after_its_first_learning_fedala_takes_one_epoch_of_a_part_of_the_images(
    tmp_path, monkeypatch
):
    process = process_of("fedala", fedala_data=0.5, local_epochs=1)
    state, taken = ClientState(tmp_path, "run", 0, {"v": "1"}), []
    for server_round in (1, 2, 3):
        client = process.client(0, Memory(state, server_round, server_round - 1))

        def counted(model, objective, images, labels, server_round=server_round):
            taken.append((server_round, len(labels)))
            return step_of(model, objective, images, labels)

        monkeypatch.setattr("clients.fedala.step_of", counted)
        client.save_state(work(client, server_round, LR))
    half, batch = client.data.num_examples / 2, 11
    third = sum(count for server_round, count in taken if server_round == 3)
    assert half <= third < half + batch, "one epoch of half of the images, in whole batches"
    assert sum(count for server_round, count in taken if server_round == 2) > 10 * third
    assert not [count for server_round, count in taken if server_round == 1]
