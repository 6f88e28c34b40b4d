"""Federations whose clients have different models: what is sent, what is kept, equal bits."""

import uuid

import numpy as np
import pytest
from flwr.app import RecordDict
from heterogeneous_runs import HETEROGENEOUS, outcome, run, strategy_of
from in_process import ROOT, InProcessGrid, assert_same, federate

from clients.training.arrays import to_arrays
from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError
from fedapp.engines.in_process import run_in_process
from fedapp.engines.resources import Resources
from fedapp.results.run_directory import RunDirectory
from fedapp.runtime.process.context import ProcessContext
from fedapp.runtime.server.strategy import build_strategy
from strategies.prototypes.uploads import Upload
from strategies.rounds.federation import Federation
from strategies.rounds.records import (
    DIVERGED,
    ERROR,
    REFUSED,
    UPLOADS,
    ClientFailure,
    from_array_record,
    to_array_record,
)
from strategies.rounds.report import RoundDiverged, RoundFailed, RoundReport


@pytest.mark.parametrize("method", HETEROGENEOUS)
def test_one_or_many_nodes_give_the_same_bits(method):
    config = run(method=method)
    one, strategy = outcome(config, nodes=1, seed=1)
    many, _ = outcome(config, nodes=4, seed=2)
    assert_same(dict(sorted(one.items())), dict(sorted(many.items())))
    assert one["client_count"] == 4
    assert strategy.report.failures == []
    assert np.isfinite(strategy.report.train_loss)


@pytest.mark.parametrize("method", HETEROGENEOUS)
def test_a_resumed_federation_ends_with_the_same_bits_and_has_learnt(method):
    run_config = run(method=method, num_rounds=3, participation=0.5)
    whole, strategy = outcome(run_config, nodes=2)
    config = parse_config(run_config)
    process = ProcessContext(config)
    grid = InProcessGrid(run_config, 2)
    federation = Federation(
        {c: 100 + c % 2 for c in range(4)},
        {c: len(process.data.partition.train[c]) for c in range(4)},
    )
    key = uuid.uuid4().hex
    arrays = to_array_record(to_arrays(process.slot.shared))
    saved = None
    for first, last in ((1, 2), (3, 3)):
        part = build_strategy(config, ProcessContext(config), federation, key)
        if saved is not None:
            part.restore(saved)
        arrays = part.start(grid, arrays, last, 5, first_round=first).arrays
        saved = part.save()
    scores = {n: np.array(v) for n, v in part.report.client_accuracy.items()}
    resumed = {**from_array_record(arrays), **saved, **scores}
    assert_same(dict(sorted(whole.items())), dict(sorted(resumed.items())))
    accuracy = strategy.report.client_accuracy
    assert accuracy.get("client_accuracy_head_total", accuracy["client_accuracy_total"]) > 0.25


@pytest.mark.parametrize("method", ["feddor", "fedtgp", "fedorgp", "fedgh", "fedproto"])
def test_only_prototypes_and_class_ids_travel(method):
    seen = []

    def watch(reply):
        records = reply.content.array_records
        if UPLOADS in records:
            rows = from_array_record(records[UPLOADS])
            names = {name.partition("/")[2] for name in rows}
            widths = {rows[n].shape[1] for n in rows if n.endswith("/proto")}
            seen.append((len(records["arrays"]), names, widths))
        return reply

    federate(run(method=method, fedproto_weighting="uniform"), nodes=4, tamper=watch)
    assert seen == [(0, {"proto", "proto-classes"}, {16})] * 8


def spoiled(client, **arrays):
    """Return a tamper function that changes the uploads of one client."""

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


def test_a_client_cannot_outweigh_the_others_by_counts_it_has_not_seen():
    config = run(method="fedproto", num_rounds=1, local_epochs=2)
    honest = federate(config, nodes=4, tamper=spoiled(2, proto_counts=lambda counts: counts))[1]
    assert honest.report.failures == []
    strategy = federate(config, nodes=4, tamper=spoiled(2, proto_counts=lambda n: 2 * n))[1]
    [failure] = strategy.report.failures
    assert (failure.client, failure.kind) == (2, REFUSED)
    assert "cannot have seen more than" in failure.reason
    twice = {**config, "proto-collect": "during"}  # counts what both epochs saw
    assert federate(twice, nodes=4)[1].report.failures == []


@pytest.mark.parametrize("method", ["feddor", "fedproto", "fedtgp", "fedgh"])
def test_a_round_without_any_prototype_leaves_the_server_as_it_was(method):
    strategy, _ = strategy_of(run(method=method))
    before = strategy.save()
    nothing = np.zeros(0, np.int64)
    strategy._read = {2: Upload(np.zeros((0, 16), np.float32), nothing, nothing)}
    strategy.end_round({})
    assert_same(before, strategy.save())


@pytest.mark.parametrize("method", ["fedgh", "fedkd"])
def test_a_run_goes_on_when_all_clients_diverge_and_its_metrics_say_so(method, tmp_path):
    config = run(method=method, lr=1e9, batch_size=10, output_dir=str(tmp_path), run_name="wild")
    assert run_in_process(ROOT, config, Resources()) == 0
    wild = RunDirectory.load(tmp_path / "wild")
    assert [(row["clients"], row["failed"]) for row in wild.rounds()] == [(0, 4), (0, 4)]
    assert all(row["train_loss"] is None for row in wild.rounds())
    assert "loss is nan" in wild.rounds()[0]["failures"][0]
    assert wild.summary()["status"] == "completed"
    with pytest.raises(RoundFailed, match="needs 2"):
        federate({**config, "min-replies": 2})


@pytest.mark.parametrize(
    ("method", "key", "made"),
    [
        ("fedtgp", "proto-server-lr", "prototypes"),
        ("fedgen", "fedgen-server-lr", "a generator"),
    ],
)
def test_a_server_whose_own_training_diverges_says_so_instead_of_its_clients(method, key, made):
    sentence = f"round 1 gave {made} with non-finite values: .*; lower {key}"
    with pytest.raises(RoundDiverged, match=sentence):
        federate({**run(method=method), key: 1e30})


def test_headers_that_are_not_finite_are_named():
    strategy, _ = strategy_of(run(method="fedgh"))
    for header in strategy.headers.values():
        header.weight.data.fill_(np.nan)
    strategy._read = {0: Upload(np.ones((1, 16), np.float32), np.zeros(1, np.int64))}
    with pytest.raises(RoundDiverged, match=r"gave headers with non-finite .*'header-0.weight'"):
        strategy.end_round({})


def test_a_run_ends_when_no_node_answers():
    lost = RoundReport(3, failures=[ClientFailure(0, ERROR, "gone")])
    with pytest.raises(RoundFailed, match="0 usable updates of 1 and needs 1"):
        lost.check(1, tolerate_failures=True, may_be_empty=True)
    lost.failures.append(ClientFailure(1, DIVERGED, "wild"))
    lost.check(1, tolerate_failures=True, may_be_empty=True)
    with pytest.raises(RoundFailed, match="client 0 failed"):
        lost.check(1, tolerate_failures=False, may_be_empty=True)


def test_feddors_first_prototypes_are_the_rows_its_heads_start_at():
    config = parse_config(run(method="feddor"))
    process = ProcessContext(config)
    rows = process.heterogeneous.rows
    np.testing.assert_allclose(rows @ rows.T, np.eye(10), atol=1e-5)
    for client in (0, 1):
        head = process.slot_of(client).model.head
        np.testing.assert_array_equal(head.weight.detach().numpy(), rows)
    assert process.head_hash() != ""


def test_feddors_prototypes_start_at_the_orthogonal_rows_and_stay_apart(tmp_path):
    config = run(
        method="feddor", num_rounds=3, batch_size="auto", output_dir=str(tmp_path), run_name="apart"
    )
    strategy, process = strategy_of(config)
    np.testing.assert_allclose(strategy.made(), process.heterogeneous.rows, atol=1e-5)
    assert run_in_process(ROOT, config, Resources()) == 0
    rows = RunDirectory.load(tmp_path / "apart").rounds()
    assert all(row["prototype_cosine_mean"] < 0.2 for row in rows)
    assert all(row["prototype_cosine_mean"] < row["prototype_cosine_largest"] < 1 for row in rows)
    assert all(5 < row["server_epochs"] <= 100 for row in rows)
    assert all(0 <= row["client_accuracy_proto_total"] <= 1 for row in rows)


def test_feddor_still_has_one_epoch_of_a_plain_generator():
    short = {"feddor_server_epochs": 1, "feddor_generator": "plain"}
    _, strategy, _ = federate(run(method="feddor", **short))
    assert strategy.round_metrics()["server_epochs"] == 1
    assert strategy.round_metrics()["prototype_cosine_mean"] > 0.5
    strategy.begin_round({}, 1, 1)
    assert strategy.round_metrics()["server_epochs"] == 0


def test_without_orthogonal_rows_the_generator_has_none_to_start_at():
    short = {"feddor_server_epochs": 1, "feddor_generator": "plain"}
    for method, same in (("feddor-no-oi", True), ("feddor", False)):
        fitted, plain = (strategy_of(run(method=method, **keys))[0] for keys in ({}, short))
        assert np.array_equal(fitted.made(), plain.made()) == same


def test_clients_of_one_architecture_start_equal_and_of_two_do_not():
    process = ProcessContext(parse_config(run(method="feddor")))
    assert process.slot_of(0) is process.slot_of(2)
    assert process.slot_of(0) is not process.slot_of(1)
    other = ProcessContext(parse_config(run(method="feddor")))
    for client in (0, 1):
        own, again = (n.slot_of(client).model.state_dict() for n in (process, other))
        assert_same(
            {name: t.numpy() for name, t in own.items()},
            {name: t.numpy() for name, t in again.items()},
        )


def test_the_size_of_all_models_is_known_before_they_are_built():
    process = ProcessContext(parse_config(run(method="feddor")))
    real = [
        sum(t.numel() * t.element_size() for t in process.slot_of(c).model.state_dict().values())
        for c in range(4)
    ]
    assert process.heterogeneous.bytes_of_all() == sum(real)


def sent(method):
    """Return the bytes up and down in the last round of a federation with a node per client."""
    report = federate(run(method=method), nodes=4)[1].report
    return report.bytes_up, report.bytes_down


def test_feddor_sends_no_more_than_fedproto_and_fedkd_less_than_fml():
    feddor, fedproto, alone = sent("feddor"), sent("fedproto"), sent("local-hetero")
    assert alone < feddor
    assert feddor[0] < fedproto[0]
    assert feddor[1] <= fedproto[1]
    assert sent("fedkd")[0] < sent("fml")[0]


@pytest.mark.parametrize("method", ["feddor", "fedgh", "fml"])
def test_what_clients_send_and_are_sent_does_not_depend_on_how_many_share_a_node(method):
    one, four = (federate(run(method=method), nodes=nodes)[1].report for nodes in (1, 4))
    assert one.client_bytes_down == four.client_bytes_down > 0
    assert one.bytes_down < four.bytes_down
    assert 0.5 < four.client_bytes_down / four.bytes_down < 1  # names and shapes are sent too
    payloads = [sum(result.payload for result in report.results) for report in (one, four)]
    assert payloads[0] == payloads[1]


def test_heads_of_four_shapes_run_where_heads_are_not_averaged():
    config = run(method="fedgh", model_group="Res34-HtC4", num_rounds=1)
    process = ProcessContext(parse_config({**config, "num-clients": 4}))
    assert [process.heterogeneous.group.hidden_of(c) for c in range(4)] == [0, 512, 256, 128]
    strategy = build_strategy(
        process.config, process, Federation({c: c for c in range(4)}, dict.fromkeys(range(4), 1))
    )
    assert sorted(strategy.extras([1, 3])) == ["header-128", "header-512"]
    for method in ("fedgen", "lg-fedavg"):
        with pytest.raises(UserError, match="heads of different shapes"):
            parse_config(run(method=method, model_group="Res34-HtC4"))


def test_a_group_needs_a_method_that_can_use_it():
    with pytest.raises(UserError, match="one model for all"):
        parse_config(run(method="fedavg", model_group="MHMG2"))
    with pytest.raises(UserError, match="MHMG9"):
        parse_config(run(method="feddor", model_group="MHMG5"))
