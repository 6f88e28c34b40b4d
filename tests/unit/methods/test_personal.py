"""Personal methods: their steps, what they keep, and what they reduce to."""

import numpy as np
import pytest
import torch
from in_process import assert_same, differ, federate, settings
from reference import VECTORS
from torch import nn

from clients.ditto import move_towards
from clients.state.memory import Memory
from clients.state.store import ClientState, StateError
from clients.training.displacement import displaced
from clients.training.parts import frozen_statistics, training_only
from clients.training.sgd import FusedSGD
from fedapp.config.resolve import parse_config
from fedapp.methods.table import METHODS
from fedapp.models.model import build_model
from fedapp.runtime.process.context import ProcessContext

pytestmark = pytest.mark.usefixtures("few_images")

SERVER = VECTORS["server"]
KEEPS = [
    "local", "local-etf", "local-dr", "fedper", "fedrep", "fedbn", "ditto", "apfl", "pfedme",
    "fedrod", "fedala",
]  # fmt: skip
ALONE = {"num_clients": 1, "participation": 1.0, "partition": "iid", "num_rounds": 3}


def parameter(values):
    return nn.Parameter(torch.tensor(values, dtype=torch.float64))


def test_ditto_step_is_the_published_one():
    vector = SERVER["Ditto_step"]
    own, anchor = parameter(vector["v"]), parameter(vector["w_global"])
    own.grad = torch.tensor(vector["grad_ce"], dtype=torch.float64)
    move_towards([own], [anchor], vector["lr"] * vector["lam"])
    FusedSGD([own], vector["lr"], 0.0, 0.0).step()
    np.testing.assert_allclose(own.detach(), vector["v_new"], rtol=1e-12)


def test_per_fedavg_takes_the_second_gradient_at_the_moved_point():
    vector = SERVER["PerFedAvg_FO"]
    weight = parameter(vector["w"])

    def loss(batch):
        return 0.5 * (weight - torch.tensor(vector[batch])).square().sum()

    loss("b1").backward()
    before = weight.detach().clone()
    with displaced([weight], [-vector["alpha"] * weight.grad]):
        np.testing.assert_allclose(weight.detach(), vector["w_prime"], rtol=1e-12)
        loss("b2").backward()
    assert torch.equal(weight, before)
    FusedSGD([weight], vector["beta"], 0.0, 0.0).step()
    np.testing.assert_allclose(weight.detach(), vector["w_new"], rtol=1e-12)


def test_displaced_weights_are_seen_under_autocast_and_so_are_the_old_ones_after():
    torch.manual_seed(0)
    layer, inputs = torch.nn.Linear(8, 8), torch.randn(4, 8)
    with torch.autocast("cpu", torch.bfloat16):
        before = layer(inputs)
        with displaced([layer.weight], [torch.ones(8, 8)]):
            moved = layer(inputs)
        after = layer(inputs)
    expected = before.float() + inputs.sum(1, keepdim=True)
    torch.testing.assert_close(moved.float(), expected, rtol=0.05, atol=0.1)
    assert torch.equal(before, after)


@pytest.mark.parametrize("constant", [False, True])
def test_per_fedavg_is_the_same_loop_written_in_plain_pytorch(constant):
    keys = {"per_fedavg_beta": 0.3, "per_fedavg_constant": constant, "lr": 0.1, "batch_size": 11}
    process = ProcessContext(parse_config(settings(method="per-fedavg", **keys)))
    client = process.client(0)
    received = client.get_parameters({})
    sent, _, report = client.fit(received, {"server_round": 2, "lr": 0.05})
    model = process.new_model()
    outer = 0.3 if constant else 0.3 * 0.05 / 0.1  # it falls as the local rate has fallen
    optimiser = torch.optim.SGD(model.parameters(), outer, momentum=0.9)
    batches = list(process.client(0).data.training(2)())
    assert len(batches) % 2 == 1  # 51 images: the last batch is both halves of its pair
    pairs = [(batches[i], batches[min(i + 1, len(batches) - 1)]) for i in range(0, len(batches), 2)]
    for first, second in pairs:
        moved = process.new_model()
        moved.load_state_dict(model.state_dict())
        nn.functional.cross_entropy(moved(first[0])[1], first[1]).backward()
        with torch.no_grad():
            for value in moved.parameters():
                value -= 0.05 * value.grad
        moved.zero_grad()
        nn.functional.cross_entropy(moved(second[0])[1], second[1]).backward()
        for value, other in zip(model.parameters(), moved.parameters(), strict=True):
            value.grad = other.grad.clone()
        optimiser.step()
    assert report["steps"] == len(pairs)
    for array, value in zip(sent, model.parameters(), strict=True):
        np.testing.assert_allclose(array, value.detach(), rtol=1e-4, atol=1e-6)


def test_the_outer_rate_falls_with_the_local_one_unless_it_is_constant():
    run = {"method": "per-fedavg", "num_rounds": 1}
    received = ProcessContext(parse_config(settings(**run))).client(0).get_parameters({})

    def change(lr, **keys):
        client = ProcessContext(parse_config(settings(**run, lr=0.05, **keys))).client(0)
        sent = client.fit(received, {"server_round": 1, "lr": lr})[0]
        return sum(float(np.abs(a - b).sum()) for a, b in zip(sent, received, strict=True))

    constant = {"per_fedavg_constant": True}
    assert change(0.0005) < 0.05 * change(0.05)
    assert change(0.0005, **constant) > 0.5 * change(0.05, **constant)


@pytest.mark.parametrize("method", ["fedper", "local"])
def test_with_one_client_a_personal_part_changes_no_bit(method, tmp_path):
    run = {**ALONE, "state_dir": str(tmp_path), "lr": 0.05}
    whole = federate(settings(method="fedavg", **run))[0]
    sent = federate(settings(method=method, keep_state=True, **run), state_key="r")[0]
    kept = ClientState(tmp_path, "r", 0, header(method)).load(99)
    assert_same(whole, {name: {**sent, **kept}[name] for name in whole})


def header(method):
    digits = ProcessContext(parse_config(settings(method=method))).data.dataset
    classes = f"10 ({digits.classes_hash()})"
    return {"method": method, "model": "cnn", "classes": classes, "seed": "0"}


def test_dittos_global_branch_is_fedavg_and_without_a_pull_it_trains_alone(tmp_path):
    lr = {"lr": 0.05}
    assert_same(
        federate(settings(method="ditto", **lr))[0], federate(settings(method="fedavg", **lr))[0]
    )

    def personal(key, **keys):
        run = {**lr, **keys, "num_clients": 2, "participation": 1.0, "state_dir": str(tmp_path)}
        federate(settings(shards=5, **run), state_key=key)
        return ClientState(tmp_path, key, 0, header(keys["method"])).load(9)

    free = personal("free", method="ditto", ditto_lambda=0.0)
    assert_same(personal("alone", method="local"), free)
    assert differ(personal("pulled", method="ditto"), free)


def test_ditto_counts_the_images_of_both_models():
    run = {"num_clients": 5, "num_rounds": 1, "local_epochs": 1}
    ditto = federate(settings(method="ditto", **run))[1].report.results
    fedavg = federate(settings(method="fedavg", **run))[1].report.results
    assert [r.images for r in ditto] == [2 * r.images for r in fedavg]


def test_dittos_reference_mode_averages_the_personal_models():
    plain = settings(method="ditto", lr=0.05, num_rounds=2)
    final = federate(plain)[0]
    assert differ(final, federate({**plain, "ditto-reference": True})[0])
    # one client, no pull: the personal model is FedAvg's, and so is what is sent
    one = settings(method="ditto", ditto_reference=True, ditto_lambda=0.0, lr=0.05, **ALONE)
    constant = settings(method="fedavg", lr=0.05, lr_schedule="constant", **ALONE)
    assert_same(federate({**one, "lr-schedule": "constant"})[0], federate(constant)[0])


@pytest.mark.parametrize("reference", [True, False])
def test_dittos_reference_gives_new_clients_the_first_rate(reference):
    config = settings(method="ditto", ditto_reference=reference, lr=0.05)
    process = ProcessContext(parse_config(config))
    received = process.client(0).get_parameters({})
    late, later = (
        process.client(0).evaluate(received, {"server_round": 9, "lr": lr})[0]
        for lr in (0.01, 0.001)
    )
    assert (late == later) == reference


def test_fedrep_trains_its_parts_in_turn():
    process = ProcessContext(parse_config(settings(method="fedrep", local_epochs=2)))
    client = process.client(0)
    received = client.get_parameters({})
    initial = [t.detach().clone() for t in process.new_model().parameters()]
    epoch = client.data.training(1)
    result = client.fit(received, {"server_round": 1, "lr": 0.05})[2]
    model = process.new_model()
    phases = [(model.head, 2), (model.extractor, 1)]
    steps = 0
    for part, epochs in phases:
        optimiser = torch.optim.SGD(part.parameters(), 0.05, 0.9, weight_decay=1e-5, fused=True)
        for _ in range(epochs):
            for images, labels in epoch():
                model.zero_grad()
                nn.functional.cross_entropy(model(images)[1], labels).backward()
                optimiser.step()
                steps += 1
    assert result["steps"] == steps
    for own, other, first in zip(
        process.model.parameters(), model.parameters(), initial, strict=True
    ):
        assert torch.equal(own, other)
        assert not torch.equal(own, first)


@pytest.mark.parametrize("method", [*KEEPS[6:], "fedrep", "fedper", "per-fedavg", "local"])
def test_evaluation_writes_no_state_and_changes_no_training(method, tmp_path):
    run = settings(method=method, num_rounds=3, state_dir=str(tmp_path))
    often, _, history = federate({**run, "eval-every": 1}, state_key="a")
    rarely = federate({**run, "eval-every": 3}, state_key="b")[0]
    assert_same(often, rarely)
    assert len(history) == 3
    one, other = (
        [ClientState(tmp_path, key, client, header(method)).load(9) for client in range(10)]
        for key in "ab"
    )
    assert any(one) == (method in KEEPS)
    for a, b in zip(one, other, strict=True):
        assert_same(a or {}, b or {})


@pytest.mark.parametrize("method", KEEPS)
def test_the_personal_part_survives_rounds_without_its_client_and_a_new_process(method, tmp_path):
    config = parse_config(settings(method=method))
    received = None

    def step(process, server_round):
        state = ClientState(tmp_path, "run", 2, {"v": "1"})
        client = process.client(2, Memory(state, server_round, 1 if server_round > 1 else 0))
        start = received or client.get_parameters({})
        update = client.work(dict(zip(client.shared, start, strict=True)), server_round, 0.05)
        client.save_state(update)
        return start, state.load(server_round + 1)

    process = ProcessContext(config)
    received, first = step(process, 1)
    process.client(0).fit(received, {"server_round": 2, "lr": 0.05})  # another client in between
    again = step(ProcessContext(config), 5)[1]
    assert differ(first, again)
    assert_same(step(process, 5)[1], again)  # the same round once more, in the first process
    with pytest.raises(StateError, match="trained before in this run but its state is gone"):
        process.client(1, Memory(ClientState(tmp_path, "run", 1, {}), 3, accepted=2)).fit(
            received, {"server_round": 3, "lr": 0.05}
        )


def test_personal_accuracies_are_those_of_all_clients_for_any_number_of_nodes():
    run = settings(method="fedper", participation=0.5)
    few, many = (federate(run, nodes=n, seed=n)[1].report.client_accuracy for n in (2, 7))
    assert few == many
    assert few["client_count"] == 10


@pytest.mark.parametrize(
    ("method", "regulariser"),
    [
        ("fedper", "prox"), ("fedrep", "kd"), ("local", "kd"), ("ditto", "prox"),
        ("per-fedavg", "kd"), ("feddor", "prox"),
    ],
)  # fmt: skip
def test_a_regulariser_never_looks_at_another_clients_private_part(method, regulariser):
    more = {"feature_dim": 16} if METHODS[method].heterogeneous else {}
    run = settings(method=method, regulariser=regulariser, beta=0.5, lr=0.05, **more)
    (one, a, _), (other, b, _) = (federate(run, nodes=n) for n in (1, 10))
    assert_same(one, other)
    assert a.report.train_loss == b.report.train_loss
    assert a.report.client_accuracy == b.report.client_accuracy


def test_the_pull_starts_from_the_clients_own_part_beside_the_received_one():
    process = ProcessContext(parse_config(settings(method="fedper", regulariser="prox", beta=0.5)))
    received = process.client(0).get_parameters({})
    process.client(1).fit(received, {"server_round": 1, "lr": 0.1})
    process.client(0).fit(received, {"server_round": 1, "lr": 0.1})
    for name, tensor in process.new_model().state_dict().items():
        assert torch.equal(process.slot.teacher.state_dict()[name], tensor)


def test_only_the_named_part_trains_and_everything_is_put_back():
    model = build_model("cnn", "frozen-random", 1, 8, 3, seed=0)
    body = {n for n, _ in model.named_parameters() if not n.startswith("head.")}
    for part, expected in (("body", body), ("head", {"head.weight", "head.bias"})):
        with training_only(model, part):
            assert {n for n, p in model.named_parameters() if p.requires_grad} == expected
    assert {n for n, p in model.named_parameters() if p.requires_grad} == body


def test_still_statistics_stay_while_batches_are_normalised():
    layer = nn.BatchNorm2d(3)
    before = layer.running_mean.clone()
    with frozen_statistics(layer):
        out = layer(torch.randn(8, 3, 4, 4) + 5)
    assert torch.equal(layer.running_mean, before)
    assert int(layer.num_batches_tracked) == 0
    assert abs(float(out.mean().detach())) < 1e-5
    out.pow(3).sum().backward()  # possible also after the block
    assert layer.weight.grad.abs().min() > 0
