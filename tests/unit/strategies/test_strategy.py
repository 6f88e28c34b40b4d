"""Rounds when things go wrong: every failure has a name, and never becomes a model."""

import itertools
import logging

import numpy as np
import pytest
from flwr.app import Message
from in_process import (
    DEFAULTS,
    ShuffledGrid,
    assert_same,
    break_client,
    differ,
    federate,
    settings,
)

from clients.training.local_training import LossDiverged
from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError
from fedapp.core.rng import cohort_size, sample_clients
from fedapp.runtime.node import identity
from fedapp.runtime.process.context import ProcessContext
from fedapp.runtime.server import preflight
from fedapp.runtime.server.preflight import wait_for_nodes
from fedapp.runtime.server.strategy import build_strategy
from strategies.rounds.records import (
    ARRAYS,
    DIVERGED,
    ERROR,
    REPORT,
    from_array_record,
    to_array_record,
)
from strategies.rounds.report import RoundFailed

pytestmark = pytest.mark.usefixtures("few_images")


def spoil(change):
    """Tamper with the arrays of every train reply of the node 101."""

    def tamper(reply: Message) -> Message:
        if reply.metadata.src_node_id == 101 and not reply.has_error() and ARRAYS in reply.content:
            arrays = from_array_record(reply.content.array_records[ARRAYS])
            reply.content[ARRAYS] = to_array_record(change(arrays))
        return reply

    return tamper


RUN = settings(method="fedavg", num_rounds=1, participation=1.0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda a: {n: np.full_like(v, np.nan) for n, v in a.items()}, "non-finite"),
        (lambda a: {n: np.full_like(v, 1e12) for n, v in a.items()}, "more than"),
        (lambda a: {n: v[..., :-1] for n, v in a.items()}, "has shape"),
        (lambda a: {"x" + n: v for n, v in a.items()}, "is missing"),
        (lambda a: {}, "is missing"),
    ],
)
def test_a_spoilt_update_is_refused_by_name(change, words):
    with pytest.raises(RoundFailed, match=f"client 1 failed in round 1: .*refused.*{words}"):
        federate(RUN, nodes=10, tamper=spoil(change))
    final, strategy, _ = federate(
        {**RUN, "tolerate-failures": True}, nodes=10, tamper=spoil(change)
    )
    assert [(f.client, f.kind) for f in strategy.report.failures] == [(1, ERROR)]
    assert len(strategy.report.results) == 9
    assert all(np.isfinite(array).all() for array in final.values())


def test_a_node_that_sends_a_spoilt_partial_sum_is_refused():
    wild = spoil(lambda a: {n: v + 2**62 for n, v in a.items()})
    with pytest.raises(RoundFailed, match="out of range"):
        federate(RUN, nodes=3, tamper=wild)


def test_a_lie_about_the_number_of_examples_is_refused():
    def lie(reply: Message) -> Message:
        if reply.metadata.src_node_id == 101 and REPORT in reply.content:
            reply.content[REPORT]["examples"] = [10**6]
        return reply

    with pytest.raises(RoundFailed, match="claims 1000000 examples but has"):
        federate(RUN, nodes=10, tamper=lie)


def test_an_exception_in_a_client_stops_the_run_with_its_id_and_traceback(monkeypatch):
    break_client(monkeypatch, {4}, ZeroDivisionError("boom"))
    with pytest.raises(RoundFailed, match=r"(?s)client 4 failed in round 1.*Traceback.*boom"):
        federate(RUN)
    _, strategy, _ = federate({**RUN, "tolerate-failures": True})
    assert [f.client for f in strategy.report.failures] == [4]


def test_a_diverged_client_is_left_out_and_counted(monkeypatch):
    whole = federate(RUN)[0]
    break_client(monkeypatch, {2}, LossDiverged("the training loss is nan"))
    final, strategy, _ = federate(RUN)
    assert [(f.client, f.kind) for f in strategy.report.failures] == [(2, DIVERGED)]
    assert differ(whole, final)


def test_zero_usable_replies_never_become_a_model():
    with pytest.raises(RoundFailed, match="0 usable updates of 10 and needs 1"):
        federate({**RUN, "lr": 1e9})


def test_fewer_than_min_replies_end_the_run(monkeypatch):
    break_client(monkeypatch, {0, 1, 2}, LossDiverged("nan"))
    federate({**RUN, "min-replies": 7})
    with pytest.raises(RoundFailed, match=r"7 usable updates of 10 and needs 8 \(min-replies\)"):
        federate({**RUN, "min-replies": 8})


def test_a_node_that_never_answers_is_named():
    class Silent(ShuffledGrid):
        def pull_messages(self, message_ids):
            replies = super().pull_messages(message_ids)
            return [r for r in replies if r.metadata.src_node_id != 101 or REPORT not in r.content]

    grid = Silent({**RUN, "tolerate-failures": True}, nodes=10)
    federation = wait_for_nodes(grid, 10, {}, 5)
    assert federation.node_of[1] == 101

    config = parse_config({**RUN, "tolerate-failures": True})
    node = ProcessContext(config)
    strategy = build_strategy(config, node, federation)
    arrays = to_array_record({n: t.detach().numpy() for n, t in node.slot.shared.items()})
    strategy.start(grid, arrays, 1, timeout=2)
    assert [(f.client, f.reason) for f in strategy.report.failures] == [
        (1, "its node did not answer in time (round-timeout)")
    ]


def test_preflight_refuses_other_configurations_and_missing_nodes():
    grid = ShuffledGrid(settings(seed=1), nodes=2)
    with pytest.raises(
        UserError, match=r"node 10\d \(partition \d of 2 on .*\) has another configuration"
    ):
        wait_for_nodes(grid, 10, {"configuration": "0000"}, 5)
    grid.contexts.pop(101)
    sentence = r"5 of 10 clients have no node \(first: client 1\).* or raise round-timeout"
    with pytest.raises(UserError, match=sentence):
        wait_for_nodes(grid, 10, {}, 0.3)


def test_the_log_says_what_is_waited_for_and_where_the_nodes_are(monkeypatch, caplog):
    monkeypatch.setattr(preflight, "_FIRST_WORD", 0.0)
    grid = ShuffledGrid(settings(), nodes=2)
    late, place = grid.contexts.pop(101), itertools.count()

    def nodes(self):
        if next(place) == 20:
            self.contexts[101] = late
        return list(self.contexts)

    monkeypatch.setattr(ShuffledGrid, "get_node_ids", nodes)
    monkeypatch.setattr(identity.platform, "node", lambda: f"host-{len(grid.contexts)}")
    with caplog.at_level(logging.INFO):
        wait_for_nodes(grid, 10, {}, 60)
    waiting = "waiting for nodes since 0 s: 5 of 10 clients have no node (first: client 1); 1 nodes"
    assert caplog.text.count(waiting) == 1
    assert "node 100 (partition 0 of 2 on host-1)" in caplog.text
    assert "node 101 (partition 1 of 2 on host-2)" in caplog.text


def test_nodes_that_count_partitions_differently_are_refused():
    grid = ShuffledGrid(settings(num_clients=3, partition="iid"), nodes=3)
    grid.contexts[102].node_config["num-partitions"] = 4
    with pytest.raises(UserError, match=r"partition \d of [34] .* do not fit: give every"):
        wait_for_nodes(grid, 3, {}, 5)


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "feddor", "fedrep"])
def test_nodes_that_host_any_client_give_the_bits_of_those_with_their_own(method, tmp_path):
    run = settings(method=method, partition="dirichlet", num_rounds=3, state_dir=str(tmp_path))
    assert_same(
        federate(run, nodes=3)[0], federate(run, nodes=2, node_configs=[{"hosts": "any"}] * 2)[0]
    )


def test_all_nodes_of_a_pool_are_waited_for():
    grid = ShuffledGrid(settings(), nodes=3)
    for context in grid.contexts.values():
        context.node_config["hosts"] = "any"
    assert list(wait_for_nodes(grid, 10, {}, 5).pool) == [100, 101, 102]
    grid.contexts.pop(101)
    with pytest.raises(UserError, match="2 of 3 nodes of a pool have answered: raise"):
        wait_for_nodes(grid, 10, {}, 0.3)
    grid.contexts[100].node_config["hosts"] = "all"
    with pytest.raises(UserError, match="'hosts' is 'all' but must be own or any"):
        wait_for_nodes(grid, 10, {}, 5)


def test_a_node_without_a_place_says_how_to_give_it_one():
    grid = ShuffledGrid(settings(), nodes=1)
    grid.contexts[100].node_config.clear()
    with pytest.raises(UserError, match=r"partition-id=0 num-partitions=4.*'partition-id' is miss"):
        wait_for_nodes(grid, 10, {}, 5)
    for wrong in ("zero", 0.5):
        grid.contexts[100].node_config |= {"partition-id": wrong, "num-partitions": 1}
        with pytest.raises(UserError, match=f"'partition-id' is {wrong!r}, not a whole number"):
            wait_for_nodes(grid, 10, {}, 5)


def test_cohorts_depend_on_seed_and_round_only():
    assert sample_clients(0, 1, 100, 0.1) == sample_clients(0, 1, 100, 0.1)
    assert len(sample_clients(0, 1, 100, 0.1)) == 10
    assert len(sample_clients(0, 1, 20, 0.01)) == 1
    assert len(sample_clients(0, 1, 30, 0.1)) == 3
    assert sample_clients(0, 1, 100, 0.1) != sample_clients(0, 2, 100, 0.1)
    assert sample_clients(0, 1, 5, 1.0) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("clients", "percent"), [(n, p) for n in (3, 20, 100) for p in (1, 7, 14, 29, 55, 100)]
)
def test_a_cohort_is_the_rounded_up_share_whatever_its_product_is_in_binary(clients, percent):
    size = cohort_size(clients, percent / 100)
    assert (
        size
        == max(1, -(-clients * percent // 100))
        == len(sample_clients(0, 1, clients, percent / 100))
    )


def test_client_evaluation_covers_every_client():
    _, strategy, _ = federate(settings(client_eval_every=2, num_rounds=2))
    accuracy = strategy.report.client_accuracy
    assert accuracy["client_count"] == 10
    assert 0 <= accuracy["client_accuracy_worst"] <= accuracy["client_accuracy_mean"] <= 1
    assert federate(settings(num_rounds=1))[1].report.client_accuracy == {}


def test_bytes_are_those_of_the_messages():
    _, strategy, history = federate(RUN, nodes=10)
    model = sum(array.nbytes for array in history[-1].values())
    assert 10 * model < strategy.report.bytes_up < 10 * model * 1.01
    assert 10 * model < strategy.report.bytes_down < 10 * model * 1.01
    assert sum(result.payload for result in strategy.report.results) == 10 * model
    assert DEFAULTS["num-clients"] == 20


def test_a_lost_node_is_asked_again_after_longer_and_longer_pauses(monkeypatch):
    from fedapp.runtime.server import preflight

    clock = [100.0]
    monkeypatch.setattr(preflight.time, "monotonic", lambda: clock[0])
    lost = preflight._Lost()
    assert lost.may_ask(7)
    waits = []
    for _ in range(7):
        lost.note(7)
        start = clock[0]
        while not lost.may_ask(7):
            clock[0] += 0.5
        waits.append(clock[0] - start)
    assert waits == [2, 4, 8, 16, 32, 60, 60]
    assert lost.may_ask(8)
