"""APFL, pFedMe, FedRoD and FedALA: their loops in plain PyTorch, and what they reduce to."""

import copy

import numpy as np
import pytest
import torch
from in_process import assert_same, differ, federate, settings
from torch import nn

from clients.fedala import _top_layers
from clients.state.memory import Memory
from clients.state.store import ClientState
from fedapp.config.resolve import parse_config
from fedapp.runtime.process.context import ProcessContext

pytestmark = pytest.mark.usefixtures("few_images")

LR = 0.05
METHODS = ["apfl", "pfedme", "fedrod", "fedala"]
ce = nn.functional.cross_entropy


def process_of(method, **keys):
    return ProcessContext(parse_config(settings(method=method, batch_size=11, **keys)))


def trained(process, folder, rounds, received=None):
    """Let client 0 train in these rounds from the same received model; return its last update."""
    state = ClientState(folder, "run", 0, {"v": "1"})
    done = 0
    for server_round in rounds:
        client = process.client(0, Memory(state, server_round, done))
        start = received or dict(zip(client.shared, client.get_parameters({}), strict=True))
        received = start
        update = client.work(start, server_round, LR)
        client.save_state(update)
        done = server_round
    return update


def sgd(parameters):
    return torch.optim.SGD(parameters, LR, momentum=0.9, weight_decay=1e-5)


def close(arrays, model, prefix=""):
    for name, value in model.named_parameters():
        np.testing.assert_allclose(arrays[prefix + name], value.detach(), rtol=1e-3, atol=2e-6)


def test_apfl_is_the_same_loop_written_in_plain_pytorch(tmp_path):
    process = process_of("apfl", local_epochs=2, apfl_alpha=0.4)
    start = process.new_model()
    update = trained(process, tmp_path, [1, 2])
    share, own = 0.4, copy.deepcopy(start)
    for server_round in (1, 2):
        shared, mixed, epoch = (
            copy.deepcopy(start), copy.deepcopy(start),
            process.client(0).data.training(server_round),
        )  # fmt: skip
        both, first = (sgd(shared.parameters()), sgd(own.parameters())), True
        for images, labels in (batch for _ in range(2) for batch in epoch()):
            with torch.no_grad():
                for m, v, w in zip(*(x.parameters() for x in (mixed, own, shared)), strict=True):
                    m.copy_(share * v + (1 - share) * w)
            for model in (shared, mixed):
                model.zero_grad()
                ce(model(images)[1], labels).backward()
            slope = sum(
                float(((v - w) * m.grad).sum().detach())
                for m, v, w in zip(*(x.parameters() for x in (mixed, own, shared)), strict=True)
            )
            for v, m in zip(own.parameters(), mixed.parameters(), strict=True):
                v.grad = share * m.grad
            for optimiser in both:
                optimiser.step()
            share, first = (min(1, max(0, share - LR * slope)) if first else share), False
    close(update.shared, shared)
    close(update.state, own, "own.")
    assert update.state["alpha"] == pytest.approx(share, rel=1e-4)
    assert share != 0.4


def test_apfls_shared_model_is_fedavgs_and_its_own_alone_is_that_of_local_training(tmp_path):
    lr = {"lr": LR}
    fedavg = federate(settings(method="fedavg", **lr))[0]
    assert_same(fedavg, federate(settings(method="apfl", **lr))[0])
    alone = {"apfl_alpha": 1.0, "apfl_adaptive": False}
    own = trained(process_of("apfl", **alone), tmp_path / "a", [1, 2]).state
    local = trained(process_of("local"), tmp_path / "b", [1, 2]).state
    assert_same({name.removeprefix("own."): a for name, a in own.items() if name != "alpha"}, local)


def test_a_client_of_apfl_predicts_with_the_mixture(tmp_path):
    process = process_of("apfl", apfl_adaptive=False, apfl_alpha=0.3)
    update = trained(process, tmp_path, [1])
    received = dict(update.shared)
    client = process.client(0, Memory(ClientState(tmp_path, "run", 0, {"v": "1"}), 2, 1))
    loss, count, _ = client.evaluate(list(received.values()), {"server_round": 1, "lr": LR})
    model = process.new_model()
    with torch.no_grad():
        for name, value in model.named_parameters():
            mean = 0.3 * update.state[f"own.{name}"] + 0.7 * received[name]
            value.copy_(torch.from_numpy(mean))
    images, labels = next(iter(client.data.test()))
    assert count == len(labels)
    assert loss == pytest.approx(ce(model(images)[1], labels).item(), rel=1e-4)


def test_pfedme_is_the_same_loop_written_in_plain_pytorch(tmp_path):
    keys = {"pfedme_lambda": 2.0, "pfedme_eta": 0.1, "pfedme_steps": 3}
    process = process_of("pfedme", local_epochs=2, lr=LR, **keys)
    shared, epoch = process.new_model(), process.client(0).data.training(1)
    update = trained(process, tmp_path, [1])
    own = copy.deepcopy(shared)
    for images, labels in (batch for _ in range(2) for batch in epoch()):
        for _ in range(3):
            own.zero_grad()
            ce(own(images)[1], labels).backward()
            with torch.no_grad():
                for v, w in zip(own.parameters(), shared.parameters(), strict=True):
                    v -= LR * (v.grad + 2.0 * (v - w))
        with torch.no_grad():
            for v, w in zip(own.parameters(), shared.parameters(), strict=True):
                w -= 0.1 * 2.0 * (w - v)
    close(update.shared, shared)
    close(update.state, own)


def test_pfedmes_outer_rate_falls_with_the_learning_rate_and_beta_is_the_servers_step():
    process = process_of("pfedme", lr=LR)
    received = process.client(0).get_parameters({})

    def change(lr):
        sent = process.client(0).fit(received, {"server_round": 1, "lr": lr})[0]
        return sum(float(np.abs(a - b).sum()) for a, b in zip(sent, received, strict=True))

    assert change(LR / 10) < 0.07 * change(LR)
    run = {"method": "pfedme", "lr": LR, "num_rounds": 1}
    start = {n: t.detach().numpy() for n, t in ProcessContext(
        parse_config(settings(**run))).slot.shared.items()}  # fmt: skip
    whole, half = (federate(settings(**run, pfedme_beta=beta))[0] for beta in (1.0, 0.5))
    for name, array in whole.items():
        np.testing.assert_allclose(half[name], 0.5 * (array + start[name]), rtol=1e-5, atol=1e-7)


def test_fedrod_is_the_same_loop_written_in_plain_pytorch(tmp_path):
    process = process_of("fedrod", local_epochs=2)
    start = process.new_model()
    counts = torch.bincount(
        torch.cat([y for _, y in process.client(0).data.training(1)()]), minlength=10
    )
    assert (counts == 0).any()  # the balanced softmax leaves these classes out
    update = trained(process, tmp_path, [1, 2])
    head = nn.Linear(start.head.weight.shape[1], 10)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    for server_round in (1, 2):
        model, epoch = copy.deepcopy(start), process.client(0).data.training(server_round)
        both = sgd(model.parameters()), sgd(head.parameters())
        for images, labels in (batch for _ in range(2) for batch in epoch()):
            features, logits = model(images)
            personal = ce(logits.detach() + head(features.detach()), labels)
            for optimiser in both:
                optimiser.zero_grad()
            (ce(logits + counts.log(), labels) + personal).backward()
            for optimiser in both:
                optimiser.step()
    close(update.shared, model)
    np.testing.assert_allclose(update.state["weight"], head.weight.detach(), rtol=1e-3, atol=2e-6)
    np.testing.assert_allclose(update.state["bias"], head.bias.detach(), rtol=1e-3, atol=2e-6)
    client = process.client(0, Memory(ClientState(tmp_path, "run", 0, {"v": "1"}), 3, 2))
    loss, _, _ = client.evaluate(list(update.shared.values()), {"server_round": 2, "lr": LR})
    images, labels = next(iter(client.data.test()))
    features, logits = model(images)
    assert loss == pytest.approx(ce(logits + head(features), labels).item(), rel=1e-3)


def test_the_steps_of_fedrods_own_head_are_clipped_too(tmp_path):
    process = process_of("fedrod", local_epochs=1, clip_norm=1e-3, momentum=0.0, weight_decay=0.0)
    update = trained(process, tmp_path, [1])
    moved = np.sqrt(sum(np.square(array).sum() for array in update.state.values()))
    assert 0 < moved <= 1.001 * LR * 1e-3 * update.training.steps


def test_fedala_learns_its_shares_as_written_in_plain_pytorch(tmp_path):
    process = process_of("fedala", fedala_eta=5.0, fedala_data=1.0)
    start = process.new_model()
    first = trained(process, tmp_path, [1])
    data = process.client(0).data
    mixed, last = copy.deepcopy(start), first.state
    top = ["head.weight", "head.bias"]
    way = {n: start.get_parameter(n).detach() - torch.from_numpy(last[n]) for n in top}
    share, losses = {n: torch.ones_like(way[n]) for n in top}, []
    batches = list(data.tuning(2)())  # the same ones in every epoch
    while len(losses) <= 10 or np.std(losses[-10:]) >= 0.1:
        for images, labels in batches:
            with torch.no_grad():
                for n in top:
                    mixed.get_parameter(n).copy_(torch.from_numpy(last[n]) + way[n] * share[n])
            mixed.zero_grad()
            loss = ce(mixed(images)[1], labels)
            loss.backward()
            for n in top:
                share[n] = (share[n] - 5.0 * mixed.get_parameter(n).grad * way[n]).clamp(0, 1)
        losses.append(loss.item())
    received = {n: p.detach().numpy().copy() for n, p in start.named_parameters()}
    state = ClientState(tmp_path, "run", 0, {"v": "1"})
    client = process.client(0, Memory(state, 2, 1))
    client.set_parameters(list(received.values()))
    client.personalise(2, LR)
    for n in top:
        expected = torch.from_numpy(last[n]) + way[n] * share[n]
        np.testing.assert_allclose(
            client.model.get_parameter(n).detach(), expected, rtol=1e-3, atol=1e-5
        )
        assert float((share[n] < 1).float().mean()) > 0
    for name, value in client.model.named_parameters():
        assert name in top or torch.equal(value, start.get_parameter(name))
    update = trained(process, tmp_path / "again", [1, 2], received)
    for n in top:
        np.testing.assert_allclose(update.state[f"share.{n}"], share[n], rtol=1e-2, atol=1e-4)


def test_fedala_without_a_learning_rate_of_its_shares_is_fedavg():
    run = {"num_clients": 5, "participation": 1.0, "num_rounds": 3, "lr": LR}
    still = federate(settings(method="fedala", fedala_eta=1e-30, **run))[0]
    fedavg = federate(settings(method="fedavg", **run))[0]
    for name, array in fedavg.items():
        np.testing.assert_allclose(still[name], array, rtol=1e-4, atol=1e-6)
    assert differ(fedavg, federate(settings(method="fedala", fedala_layers=9, **run))[0])


def test_the_top_layers_are_the_last_modules_with_parameters():
    names = ["a.0.weight", "a.0.bias", "a.1.weight", "head.weight", "head.bias"]
    assert _top_layers(names, 1) == names[3:]
    assert _top_layers(names, 2) == names[2:]
    assert _top_layers(names, 9) == names


@pytest.mark.parametrize("method", METHODS)
def test_with_batchnorm_and_bfloat16_clients_train_and_are_evaluated(method):
    keys = {"model": "resnet10", "bn": "running", "num_clients": 4, "participation": 1.0, "lr": LR}
    keys |= {"partition": "iid", "precision": "bf16"}
    report = federate(settings(method=method, **keys))[1].report
    assert report.client_accuracy["client_count"] == 4
    assert np.isfinite(report.train_loss)


@pytest.mark.parametrize("method", METHODS)
def test_a_client_that_never_trained_is_evaluated_without_changing_anything(method):
    process = process_of(method)
    received = process.client(0).get_parameters({})
    one, other = (
        process.client(0).evaluate(received, {"server_round": 3, "lr": LR})[0] for _ in range(2)
    )
    assert one == other
    plain = process_of("fedavg")
    loss = plain.client(0).evaluate(received, {"server_round": 3, "lr": LR})[0]
    assert (one == loss) == (method != "pfedme")  # which trains first, as Ditto
