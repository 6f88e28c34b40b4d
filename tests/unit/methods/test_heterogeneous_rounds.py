"""Whole rounds of clients with different models, and what each server computes from uploads."""

from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import RecordDict
from heterogeneous_runs import HETEROGENEOUS, outcome, run
from in_process import InProcessGrid, assert_same
from small_clients import strategy_of
from torch import Tensor, nn
from torch.nn import functional as F

from clients.pair import Pair, PairClient
from clients.training.local_training import LocalSettings
from clients.training.model_slot import ClientData, ModelSlot
from clients.training.objective import Objective, Step
from fedapp.config.resolve import parse_config
from fedapp.methods.table import find_method
from fedapp.models import groups
from fedapp.runtime.process.context import ProcessContext
from strategies.fedavg import FedAvg
from strategies.feddor import FedDORWithoutGenerator
from strategies.fedkd import FedKD
from strategies.fedtgp import FedTGP
from strategies.prototypes.training import PrototypeMaker, ServerTraining
from strategies.prototypes.uploads import TableShape, Upload
from strategies.rounds.records import ARRAYS, ClientResult, Task, to_array_record, weight_of

pytestmark = pytest.mark.usefixtures("few_images")

ANY_HEADS = [name for name in HETEROGENEOUS if name not in ("fedgen", "lg-fedavg")]


@pytest.mark.parametrize("method", ["fedgen", "fedproto"])
def test_a_client_may_lack_a_class_in_some_rounds(method):
    config = run(method=method, stochastic_every=1, num_rounds=2)
    _, strategy = outcome(config, nodes=2)
    assert len(strategy.report.results) == 4
    assert not strategy.report.failures
    if method == "fedgen":  # it counts all labels, also those of the missing class
        assert sum(strategy._label_counts.values()).sum() == sum(
            strategy.federation.examples.values()
        )


def test_fedgen_sends_no_generator_in_the_rounds_that_do_not_use_it(monkeypatch):
    answer, sent = InProcessGrid.answer, []

    def watched(grid: InProcessGrid, message: Any) -> Any:
        if message.metadata.message_type == "train":
            sent.append(set(message.content.array_records.get("generator", {})))
        return answer(grid, message)

    monkeypatch.setattr(InProcessGrid, "answer", watched)
    outcome(run(method="fedgen", fedgen_warmup_rounds=2, num_rounds=3), nodes=1)
    assert sent[:2] == [{"missing-label-counts"}, set()]
    assert "label-distribution" in sent[2]


@pytest.mark.parametrize("method", HETEROGENEOUS)
def test_a_repeated_training_request_changes_no_bit(method, monkeypatch):
    """As after a lost reply: the client has stored a new model but starts from the previous one."""
    config = run(method=method, participation=0.5)
    once, _ = outcome(config, nodes=2)
    answer, again = InProcessGrid.answer, []

    def twice(grid: InProcessGrid, message: Any) -> Any:
        if message.metadata.message_type == "train":
            again.append(answer(grid, message))
        return answer(grid, message)

    monkeypatch.setattr(InProcessGrid, "answer", twice)
    assert_same(dict(sorted(once.items())), dict(sorted(outcome(config, nodes=2)[0].items())))
    assert again


@pytest.mark.parametrize("method", ANY_HEADS)
def test_heads_with_a_hidden_layer_train(method, monkeypatch):
    four = groups.ModelGroup(("fedavgcnn", "resnet4"), (0, 24, 12, 6))
    monkeypatch.setitem(groups.MODEL_GROUPS, "tiny-HtC4", four)
    config = run(method=method, model_group="tiny-HtC4", num_rounds=1)
    _, strategy = outcome(config, nodes=2, state_key="hidden")
    assert [result.client for result in strategy.report.results] == [0, 1, 2, 3]
    assert strategy.report.client_accuracy["client_count"] == 4
    process = ProcessContext(parse_config(config))
    for client, width in ((1, 24), (2, 12), (3, 6)):
        built = process.client(client, process.memory(client, "hidden", 2))
        (name,) = (n for n in built.stored_state if n.endswith("head.hidden.weight"))
        assert built.stored_state[name].shape == (width, 16)
        start = process.slot_of(client).model.state_dict()[name].numpy()
        assert not np.array_equal(built.stored_state[name], start)


def test_fedkds_map_and_a_hidden_layer_of_the_same_sizes_start_differently(monkeypatch):
    monkeypatch.setitem(groups.MODEL_GROUPS, "square", groups.ModelGroup(("fedavgcnn",), (16,)))
    pair = ProcessContext(parse_config(run(method="fedkd", model_group="square"))).slot_of(0).model
    hidden, map_ = pair.head.hidden.weight, pair.transform.weight
    assert hidden.shape == map_.shape
    assert not np.allclose(hidden.detach(), map_.detach())


def upload(rows: list, classes: list, counts: list | None = None) -> Upload:
    """Return one client's prototypes."""
    number = None if counts is None else np.array(counts)
    return Upload(np.array(rows, np.float32), np.array(classes), number)


def test_feddor_without_its_generator_replaces_uploaded_classes_by_counted_means():
    first = np.array([[0, 1], [1, 0]], np.float32)
    strategy = strategy_of(FedDORWithoutGenerator, shape=TableShape(2, 2), first=first)
    np.testing.assert_array_equal(strategy.table.rows, first)
    strategy._read = {0: upload([[3, 0]], [0], [1]), 2: upload([[0, 4]], [0], [3])}
    strategy.end_round({})
    mean = np.array([0.75, 3.0])
    np.testing.assert_allclose(strategy.table.rows[0], mean / np.linalg.norm(mean), rtol=1e-6)
    np.testing.assert_array_equal(strategy.table.rows[1], first[1])


def test_fedkds_server_sends_the_plain_mean_of_the_mentees_compressed():
    compressed = []

    def compress(arrays: Any, server_round: int) -> Any:
        compressed.append(server_round)
        return {f"{name}.u": array for name, array in arrays.items()}

    mentee = {"w": np.zeros(2, np.float32)}
    strategy = strategy_of(FedKD, mentee=mentee, compress=compress, decompress=None)
    strategy.server_round = 4
    strategy._read = {0: {"w": np.float32([1, 2])}, 1: {"w": np.float32([4, -3])}}
    strategy.end_round({})
    np.testing.assert_array_equal(strategy.extras([0])["mentee"]["w.u"], [2.5, -0.5])
    assert compressed == [4]


def test_fmls_server_counts_every_client_once():
    config = parse_config({"method": "fml", "weights": "size"})
    assert find_method("fml").server.kind is FedAvg
    strategy = strategy_of(FedAvg, weights=config.weights)
    received = {"w": np.zeros(2, np.float32)}
    strategy.begin_round(received, 2, 2)
    for client, values in ((0, [1, 2]), (1, [4, -3])):
        examples = 10 ** (1 + client)
        content = RecordDict({ARRAYS: to_array_record({"w": np.float32(values)})})
        result = ClientResult(client, examples, 1, 0.0, 0.0, 0, 0.0)
        assert weight_of(strategy.weights, examples) == 1
        strategy.add_reply(content, Task(1, (client,), 0.1, strategy.weights, 2, 2), [result])
    np.testing.assert_allclose(strategy.end_round(received)["w"], [2.5, -0.5], rtol=1e-6)


class Steep(PairClient):
    """Losses of slope 1000 for the personal model, and of a hundredth for the mentee."""

    def losses(self, features: Tensor, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        pair: Any = self.model
        return 1e3 * pair.personal.weight.sum(), 1e-2 * pair.mentee.weight.sum()


def test_each_model_of_a_pair_has_its_own_gradients_clipped_to_ten():
    model = Pair(nn.Linear(2, 3), nn.Linear(2, 3), nn.Linear(2, 2))
    slot = ModelSlot(model, {}, LocalSettings(1), lambda: model)
    fields: dict[str, Any] = dict.fromkeys(ClientData.__dataclass_fields__)
    client = Steep(slot, 0, ClientData(**fields), Objective())
    step = Step(torch.tensor([0]), torch.zeros(1, 2), torch.zeros(1, 3), torch.zeros(3, 2))
    client.gradients(lambda: step, Objective())
    own, other = model.personal.weight.grad, model.mentee.weight.grad
    assert float(own.norm()) == pytest.approx(10.0, rel=1e-5)
    torch.testing.assert_close(other, torch.full((3, 2), 1e-2))


def test_fedtgps_round_is_the_published_loop_written_in_plain_pytorch():
    """Q^c, delta = min(max_c min_c' |Q^c - Q^c'|, tau), then SGD on CE(-(D + delta [c = y]), y)."""
    rng = np.random.default_rng(0)
    embedding = rng.normal(size=(3, 4)).astype(np.float32)
    rows = rng.normal(size=(5, 4)).astype(np.float32)
    classes = [0, 1, 2, 0, 2]
    strategy = strategy_of(
        FedTGP, shape=TableShape(3, 4), maker=PrototypeMaker(torch.from_numpy(embedding), "plain"),
        training=ServerTraining(torch.Generator().manual_seed, lr=0.1, batch_size=32), epochs=3,
        rule="maxmin", largest_margin=100.0,
    )  # fmt: skip
    values = [p.detach().clone().requires_grad_() for p in strategy.maker.parameters()]
    names = [name for name, _ in strategy.maker.named_parameters()]
    part = dict(zip(names, values, strict=True))

    def made() -> Tensor:
        hidden = F.relu(F.linear(part["embedding"], part["first.weight"], part["first.bias"]))
        return F.linear(hidden, part["second.weight"], part["second.bias"])

    labels, prototypes = torch.tensor(classes), torch.from_numpy(rows)
    centres = torch.stack([prototypes[labels == c].mean(0) for c in range(3)])
    gaps = torch.cdist(centres, centres) + torch.diag(torch.full((3,), torch.inf))
    margin = min(float(gaps.min(1).values.max()), 100.0)
    for _ in range(3):
        logits = -(torch.cdist(prototypes, made()) + margin * F.one_hot(labels, 3))
        gradients = torch.autograd.grad(F.cross_entropy(logits, labels), values)
        with torch.no_grad():
            for value, gradient in zip(values, gradients, strict=True):
                value -= 0.1 * gradient
    strategy._read = {
        0: upload(rows[:3].tolist(), classes[:3]), 1: upload(rows[3:].tolist(), classes[3:]),
    }  # fmt: skip
    strategy.end_round({})
    np.testing.assert_allclose(strategy.table.rows, made().detach().numpy(), atol=1e-5)
    assert strategy.margin == pytest.approx(margin, rel=1e-5)
    assert not np.allclose(strategy.table.rows, strategy.maker.embedding.detach().numpy())


@pytest.mark.parametrize("method", ["fedkd", "fml"])
def test_a_mentee_starts_with_a_head_of_its_own(method):
    pair = ProcessContext(parse_config(run(method=method))).slot_of(0).model
    assert not torch.equal(pair.personal.head.weight, pair.mentee.head.weight)
