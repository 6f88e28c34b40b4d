"""Options of methods with different client models: variants from their papers and code."""

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import RecordDict
from heterogeneous_runs import outcome, run, strategy_of
from in_process import assert_same, differ, federate
from torch import nn

from clients.fd import FDClient
from clients.fedorgp import FedORGPClient
from clients.prototype_client import PrototypeClient
from clients.training.evaluation import predict
from clients.training.local_training import LocalSettings
from clients.training.model_slot import ClientData, ModelSlot
from clients.training.objective import Objective, Step
from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError
from fedapp.data.batches.in_memory import batch_bounds
from fedapp.runtime.process.context import ProcessContext
from strategies.rounds.records import UPLOADS, from_array_record, to_array_record


@pytest.mark.parametrize("method", ["fedkd", "fml", "fedgen", "fedgh"])
def test_a_method_can_be_evaluated_as_if_the_next_round_had_begun(method):
    strategy = federate(run(method=method, eval_when="after-download", num_rounds=1), nodes=2)[1]
    assert strategy.report.failures == []
    assert strategy.report.client_accuracy["client_count"] == 4


@pytest.mark.parametrize(("when", "travels"), [("round-end", False), ("after-download", True)])
def test_fedghs_header_travels_to_an_evaluation_only_if_it_is_evaluated(when, travels):
    strategy = federate(run(method="fedgh", eval_when=when, num_rounds=1), nodes=4)[1]
    header = 4 * (10 * 16 + 10)  # bytes
    assert strategy.report.bytes_down > 4 * header
    assert (strategy.report.eval_bytes_down > 4 * header) == travels


@pytest.mark.parametrize("method", ["fedavg", "fedgh", "fedkd", "lg-fedavg"])
def test_the_nearest_prototype_needs_prototypes(method):
    with pytest.raises(UserError, match=f"clients of method '{method}' receive no prototypes"):
        parse_config(run(method=method, eval_rule="proto", feature_dim="auto"))
    assert parse_config(run(method="feddor", eval_rule="proto")).eval_rule == "proto"


@pytest.mark.parametrize(
    ("key", "value", "advice"),
    [
        ("model", "resnet18", "set 'model-group' instead"),
        ("bn", "group", "leave it at 'batch', which every 'model-group' has"),
    ],
)
def test_keys_of_one_model_for_all_are_refused_where_clients_have_their_own(key, value, advice):
    sentence = f"'{key}' is '{value}' but the clients of method 'fedproto' .*; {advice}"
    with pytest.raises(UserError, match=sentence):
        parse_config(run(method="fedproto", **{key: value}))
    resolved = parse_config(run(method="fedproto"))
    assert parse_config(resolved.flat()) == resolved


def test_label_counts_that_the_server_refused_are_sent_again():
    spoiled = []

    def tamper(reply):
        records = reply.content.array_records
        uploads = from_array_record(records[UPLOADS]) if UPLOADS in records else {}
        if "2/label-counts" in uploads and not spoiled:
            spoiled.append(uploads["2/label-counts"])
            uploads["2/label-counts"] = -spoiled[0]
            reply.content = RecordDict({**reply.content, UPLOADS: to_array_record(uploads)})
        return reply

    config = run(method="fedgen", tolerate_failures=True)
    strategy = federate(config, nodes=4, tamper=tamper)[1]
    assert sorted(strategy._label_counts) == [0, 1, 2, 3]
    assert (strategy._label_counts[2] == spoiled[0]).all()


def step_of(features: list, logits: list, labels: list) -> Step:
    """Return the step of a batch with features [B, 2] and logits [B, 3]."""
    outputs = torch.tensor(logits, requires_grad=True)
    return Step(torch.tensor(labels), torch.tensor(features), outputs, torch.zeros(3, 2))


def trained_on(kind: type[PrototypeClient], batches: list, **options: Any) -> PrototypeClient:
    """Return a client of three classes after its gradients on batches for `step_of`."""
    model, counts = nn.Linear(2, 3), torch.tensor([2, 0, 1])
    slot = ModelSlot(model, {}, LocalSettings(1), lambda: model)
    nothing = dict.fromkeys(field.name for field in fields(ClientData))
    client = kind(
        slot, 0, ClientData(**{**nothing, "class_counts": counts}), Objective(), **options
    )
    for batch in batches:
        client.gradients(lambda batch=batch: step_of(*batch), Objective())
    return client


SEEN = [  # batches of two epochs; the model has changed between them
    ([[2.0, 0.0], [4.0, 0.0]], [[1.0, 0.0, 0.0], [0.0, 0.0, 5.0]], [0, 2]),
    ([[4.0, 2.0]], [[3.0, 0.0, 2.0]], [0]),
]


def test_prototypes_collected_during_training_are_means_of_all_that_was_seen():
    client = trained_on(PrototypeClient, SEEN, collect="during")
    client.counted = True
    uploaded = client.collect()
    np.testing.assert_array_equal(uploaded["proto"], [[3.0, 1.0], [4.0, 0.0]])
    np.testing.assert_array_equal(uploaded["proto-classes"], [0, 2])
    np.testing.assert_array_equal(uploaded["proto-counts"], [2, 1])
    logits = trained_on(FDClient, SEEN, collect="during").collect()["proto"]
    np.testing.assert_array_equal(logits, [[2.0, 0.0, 1.0], [0.0, 0.0, 5.0]])
    assert trained_on(PrototypeClient, SEEN).seen == []


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_prototypes_have_the_precision_of_training_and_evaluations_float32(precision, monkeypatch):
    passes: list[bool] = []

    def watched(model, batches):
        passes.append(torch.is_autocast_enabled("cpu"))
        yield from predict(model, batches)

    monkeypatch.setattr("clients.prototype_client.predict", watched)
    federate(run(method="fedproto", precision=precision, num_rounds=1), nodes=2)
    assert passes == [precision == "bf16"] * 4 + [False] * 4  # four clients train, then are tested


@pytest.mark.parametrize("method", ["fedproto", "feddor"])
def test_collecting_during_training_gives_other_prototypes_and_the_same_bits_on_any_nodes(method):
    during, after = (
        run(method=method, proto_collect=when, num_rounds=1) for when in ("during", "after")
    )
    one, many = (dict(sorted(outcome(during, nodes=nodes)[0].items())) for nodes in (1, 4))
    assert_same(one, many)
    assert differ({"rows": one["table.proto"]}, {"rows": outcome(after)[0]["table.proto"]})


@pytest.mark.parametrize("method", ["feddor", "fedkd"])
def test_clients_of_one_architecture_can_start_from_weights_of_their_own(method):
    process = ProcessContext(parse_config(run(method=method, init_per_client=True)))
    slot = process.slot_of(0)
    assert slot is process.slot_of(2)
    first, again, third = (dict(slot.initial(c).named_parameters()) for c in (0, 0, 2))
    equal = {name for name, value in first.items() if torch.equal(value, third[name])}
    assert all(torch.equal(value, again[name]) for name, value in first.items())
    common = {"head.weight", "head.scale"} if method == "feddor" else set()
    common |= {name for name in first if name.startswith(("mentee.", "transform."))}
    assert equal == common


def test_the_orthogonal_rows_of_all_clients_are_computed_once(monkeypatch):
    drawn: list[int] = []

    def rows(num_classes: int, width: int, seed: int, **_: Any) -> torch.Tensor:
        drawn.append(width)
        return torch.eye(num_classes, width)

    module = "fedapp.runtime.process.heterogeneous_models"
    monkeypatch.setattr(f"{module}.orthogonal_initialisation", rows)
    process = ProcessContext(parse_config(run(method="feddor", init_per_client=True)))
    slot = process.slot_of(0)
    heads = [slot.initial(client).get_submodule("head").weight for client in (0, 2)]
    assert all(torch.equal(head, torch.eye(10, 16)) for head in heads)
    assert drawn == [16]


def test_fedgens_generator_needs_batches_of_two():
    sentence = "'proto-batch-size' is 1, but FedGen's generator has BatchNorm"
    with pytest.raises(UserError, match=sentence):
        strategy_of({**run(method="fedgen"), "proto-batch-size": 1})


def test_clients_with_initial_weights_of_their_own_end_with_the_same_bits_on_any_nodes():
    config = run(method="lg-fedavg", init_per_client=True, num_rounds=1, participation=0.5)
    one, many = (dict(sorted(outcome(config, nodes=nodes)[0].items())) for nodes in (1, 4))
    assert_same(one, many)
    shared = outcome({**config, "init-per-client": False})[0]
    assert differ({"head": one["head.weight"]}, {"head": shared["head.weight"]})


def first_epoch(**changes: Any) -> tuple[list[int], list[int], list[int]]:
    """Return the first client's batch sizes, its labels in an epoch's order and in stored order."""
    process = ProcessContext(parse_config(run(**{"batch_size": 32, **changes})))
    served = [labels for _, labels in process.client(0).data.training(1)()]
    own = process.data.dataset.train_labels[process.data.partition.train[0]].tolist()
    return [len(labels) for labels in served], torch.cat(served).tolist(), own


def test_incomplete_batches_are_dropped_by_default_where_models_are_personal():
    full, mixed, own = first_epoch(method="feddor")
    assert full == [32] * (len(own) // 32)
    assert mixed != own[: len(mixed)]
    all_of_them = [stop - start for start, stop in batch_bounds(len(own), 32)]
    assert first_epoch(method="feddor", drop_last=False)[0] == all_of_them
    shared = {"method": "fedavg", "feature_dim": "auto"}
    assert first_epoch(**shared)[0] == all_of_them
    assert first_epoch(**shared, drop_last=True)[0] == full


def test_images_can_be_taken_in_their_order():
    _, labels, own = first_epoch(method="feddor", local_shuffle=False)
    assert labels == own[: len(labels)]


def test_fedgen_can_ask_all_clients_for_their_labels_before_the_first_round():
    config = run(method="fedgen", participation=0.25, num_rounds=1)
    counts = ProcessContext(parse_config(config)).data.class_counts()[0]
    sent: list[set[str]] = []

    def watch(reply):
        if reply.metadata.message_type == "train":
            sent.append({n for n in reply.content.array_records if n == UPLOADS})
        return reply

    one, many = (
        federate({**config, "fedgen-label-query": True}, nodes=nodes, tamper=watch)[1]
        for nodes in (1, 4)
    )
    assert sent == [set(), set()]  # counts that the reply had are not sent again
    for strategy in (one, many):
        np.testing.assert_array_equal([strategy._label_counts[c] for c in range(4)], counts)
        assert len(strategy.report.results) == 1
    assert_same(dict(sorted(one.save().items())), dict(sorted(many.save().items())))
    [known] = federate(config, nodes=4)[1]._label_counts
    assert known == one.report.results[0].client


def test_label_counts_missing_from_a_reply_come_with_the_first_upload():
    def tamper(reply):
        if reply.metadata.message_type == "query.labels":
            reply.content = RecordDict()
        return reply

    config = run(method="fedgen", fedgen_label_query=True, num_rounds=1)
    assert sorted(federate(config, nodes=4, tamper=tamper)[1]._label_counts) == [0, 1, 2, 3]


def test_diversity_changes_what_the_generator_learns():
    def trained(weight: float) -> dict[str, np.ndarray]:
        saved = federate(run(method="fedgen", fedgen_diversity=weight, num_rounds=1))[1].save()
        return {name: saved[name] for name in saved if name.startswith("generator.")}

    assert differ(trained(0.0), trained(1.0))


def test_fedorgp_can_add_its_losses_up():
    table = {"proto": np.array([[1, 0], [0, 1]], np.float32), "proto-classes": np.array([0, 2])}
    batch = ([[0.0, 3.0], [2.0, 0.0]], [[0.0] * 3] * 2, [0, 0])  # 1 - cos is 1 and 0
    extras = {"prototypes": table}
    mean, added = (
        trained_on(FedORGPClient, [], extras=extras, reduction=r).pull(step_of(*batch))
        for r in ("mean", "sum")
    )
    assert (float(mean), float(added)) == (0.5, 1.0)

    def server_loss(reduction: str) -> float:
        strategy = strategy_of(run(method="fedorgp", fedorgp_reduction=reduction))[0]
        strategy.gamma, strategy.maker.residual = 2.0, True
        with torch.no_grad():
            for parameter in strategy.maker.parameters():
                parameter.zero_()
            strategy.maker.embedding.copy_(torch.eye(10, 16))
        rows = torch.zeros(2, 16)
        rows[0, 0], rows[1, 1], rows[1, 2] = 5.0, 3.0, 4.0  # cosines 1; 0.6 and 0.8
        return float(strategy.loss(rows, torch.tensor([0, 1])).detach())

    assert server_loss("mean") == pytest.approx((0 + 0.4) / 2 + 2 * 0.8 / (2 * 9))
    assert server_loss("sum") == pytest.approx(0.4 + 2 * 0.8)


@pytest.mark.parametrize("shared", [True, False])
def test_feddors_embedding_starts_at_the_rows_of_all_or_at_orthogonal_ones_of_its_own(shared):
    strategy, process = strategy_of(run(method="feddor", feddor_oi_shared_seed=shared))
    embedding = strategy.maker.embedding.detach().numpy()
    np.testing.assert_array_equal(strategy.table.rows, process.heterogeneous.rows)
    np.testing.assert_allclose(embedding @ embedding.T, 16 * np.eye(10), atol=1e-4)
    np.testing.assert_allclose(strategy.made(), embedding / 4, atol=1e-5)
    assert np.array_equal(embedding, 4 * process.heterogeneous.rows) == shared


def test_a_relu_after_the_logits_is_for_heads_of_four_shapes():
    with pytest.raises(UserError, match="those of model group 'tiny' are alike"):
        parse_config(run(method="fedproto", head_final_relu=True))
    config = run(method="fml", model_group="MHMG8-HtC4", head_final_relu=True, num_clients=1)
    process = ProcessContext(parse_config(config))
    pair, features = process.slot_of(0).model, torch.randn(20, 16)
    assert float(pair.head(features).detach().min()) == 0.0
    assert float(pair.mentee.head(features).detach().min()) < 0.0
    assert float(process.heterogeneous.header(0)(features).detach().min()) == 0.0
