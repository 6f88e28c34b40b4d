"""Federations in which every client has its own model: what travels, what stays, what is equal."""

import numpy as np
import pytest
from flwr.app import RecordDict
from in_process import assert_same, federate, settings

from fedapp.config import RunConfig
from fedapp.errors import UserError
from fedapp.methods import METHODS
from fedapp.node import Node
from strategies.records import UPLOADS, from_array_record, to_array_record

PERSONAL = [name for name, row in METHODS.items() if row.personal is not None]
PROTOTYPE = [name for name in PERSONAL if "prototypes" in METHODS[name].also_sends]


def run(**changes):
    """A federation of four clients with two architectures, for two rounds."""
    quick = {"num_clients": 4, "partition": "dirichlet", "participation": 1.0, "feature_dim": 16}
    return settings(**{**quick, **changes})


def outcome(config, **more):
    """Everything a federation ends with: shared arrays, server state, the clients' scores."""
    final, strategy, _ = federate(config, **more)
    scores = {n: np.array(v) for n, v in strategy.report.client_accuracy.items()}
    return {**final, **strategy.save(), **scores}, strategy


@pytest.mark.parametrize("method", PERSONAL)
def test_one_or_many_nodes_give_the_same_bits(method):
    config = run(method=method)
    one, strategy = outcome(config, nodes=1, seed=1)
    many, _ = outcome(config, nodes=4, seed=2)
    assert_same(dict(sorted(one.items())), dict(sorted(many.items())))
    assert one["client-count"] == 4
    assert strategy.report.failures == []
    assert np.isfinite(strategy.report.train_loss)


@pytest.mark.parametrize("method", PERSONAL)
def test_training_helps(method):
    config = run(method=method, num_rounds=3, local_epochs=2)
    first = federate({**config, "num-rounds": 1}, nodes=1)[1].report
    last = federate(config, nodes=1)[1].report
    assert last.train_loss < first.train_loss
    assert last.client_accuracy["client-accuracy-head-total"] > 0.3


@pytest.mark.parametrize("method", ["feddor"])
def test_only_prototypes_and_class_ids_travel(method):
    seen = []

    def watch(reply):
        if UPLOADS in reply.content.array_records:
            seen.append(reply.content.array_records)
        return reply

    federate(run(method=method), nodes=4, tamper=watch)
    assert len(seen) == 8
    for records in seen:
        assert len(records["arrays"]) == 0
        names = {name.partition("/")[2] for name in records[UPLOADS]}
        assert names == {"proto", "proto-classes"}
        rows = from_array_record(records[UPLOADS])
        assert {rows[n].shape[1] for n in rows if n.endswith("/proto")} == {16}


def spoiled(client, **arrays):
    """A tamper function that changes what one client uploads."""

    def tamper(reply):
        records = reply.content.array_records
        if UPLOADS in records:
            uploads = from_array_record(records[UPLOADS])
            if f"{client}/proto" in uploads:
                for name, change in arrays.items():
                    label = f"{client}/{name.replace('_', '-')}"
                    uploads[label] = change(uploads[label])
                content = RecordDict({**reply.content, UPLOADS: to_array_record(uploads)})
                reply.content = content
        return reply

    return tamper


@pytest.mark.parametrize("nodes", [1, 4])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"proto": lambda rows: rows * np.nan}, "non-finite"),
        ({"proto": lambda rows: rows + np.float32(1e12)}, "more than 1e\\+06"),
        ({"proto": lambda rows: rows[:, :3]}, "float32"),
        ({"proto_classes": lambda classes: classes + 10}, "outside 0..9"),
        ({"proto_classes": np.zeros_like}, "prototypes of class 0"),
    ],
)
def test_a_malformed_upload_is_refused_by_client_and_the_round_goes_on(change, words, nodes):
    config = run(method="feddor", num_rounds=1)
    strategy = federate(config, nodes=nodes, tamper=spoiled(2, **change))[1]
    assert [failure.client for failure in strategy.report.failures] == [2]
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(strategy.report.failures[0].reason)
    assert [result.client for result in strategy.report.results] == [0, 1, 3]
    assert np.isfinite(strategy.table.rows).all()


def test_feddors_first_prototypes_are_the_rows_its_heads_start_at():
    config = RunConfig.parse(run(method="feddor"))
    node = Node(config)
    rows = node.personal.rows
    np.testing.assert_allclose(rows @ rows.T, np.eye(10), atol=1e-5)
    for client in (0, 1):
        head = node.place(client).model.head
        np.testing.assert_array_equal(head.weight.detach().numpy(), rows)
    assert node.head_hash() != ""


def test_clients_of_one_architecture_start_equal_and_of_two_do_not():
    node = Node(RunConfig.parse(run(method="feddor")))
    assert node.place(0) is node.place(2)
    assert node.place(0) is not node.place(1)
    other = Node(RunConfig.parse(run(method="feddor")))
    for client in (0, 1):
        own, again = (n.place(client).model.state_dict() for n in (node, other))
        assert_same(
            {name: t.numpy() for name, t in own.items()},
            {name: t.numpy() for name, t in again.items()},
        )


def test_the_size_of_all_models_is_known_before_they_are_built():
    node = Node(RunConfig.parse(run(method="feddor")))
    real = [
        sum(t.numel() * t.element_size() for t in node.place(c).model.state_dict().values())
        for c in range(4)
    ]
    assert node.personal.bytes_of_all() == sum(real)


def test_a_group_needs_a_method_that_can_use_it():
    with pytest.raises(UserError, match="one model for all"):
        RunConfig.parse(run(method="fedavg", model_group="MHMG2"))
    with pytest.raises(UserError, match="MHMG9"):
        RunConfig.parse(run(method="feddor", model_group="MHMG5"))
