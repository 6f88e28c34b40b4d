"""Rounds with secure aggregation: the bits of a run without it, whoever is lost on the way."""

import logging
from dataclasses import replace

import numpy as np
import pytest
from in_process import ShuffledGrid, assert_same, break_client, federate, settings

from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError
from strategies.rounds.records import (
    ARRAYS,
    Task,
    from_array_record,
    to_array_record,
    view_array_record,
)
from strategies.rounds.report import RoundFailed
from strategies.secure.node import SecureNode
from strategies.secure.primitives import ProtocolBroken

pytestmark = pytest.mark.usefixtures("few_images")

RUN = settings(method="fedavg", participation=1.0, num_rounds=1, tolerate_failures=True)
SECURE = {**RUN, "secure-aggregation": "pairwise"}
GONE = 3  # the party that is lost: node 102 of five, which hosts the clients 2 and 7
STEPS = ["advertise", "share_secrets", "mask", "unmask"]


def lose(monkeypatch, step, parties, error):
    """Let some parties fail at one step of the protocol."""
    take = getattr(SecureNode, step)

    def failing(self, *arguments, **named):
        asked = named.get("asked") or arguments[-1]
        record = self.records.config_records.get("secure-aggregation")
        party = asked["party"] if record is None or step == "advertise" else record["party"]
        if party in parties:
            raise error
        return take(self, *arguments, **named)

    monkeypatch.setattr(SecureNode, step, failing)


def without(monkeypatch, clients):
    """Return the model of a plain round in which some clients fail."""
    with monkeypatch.context() as patched:
        break_client(patched, clients, RuntimeError("lost"))
        return federate(RUN, nodes=5)[0]


@pytest.mark.parametrize(
    "method", ["fedavg", "feddr+", "scaffold", "fednova", "feddyn", "fedexp", "fedcurv", "fedper"]
)
def test_the_model_is_that_of_a_run_without_masks_bit_for_bit(method):
    run = settings(method=method, num_rounds=2)
    hidden = {**run, "secure-aggregation": "pairwise"}
    assert_same(federate(run, nodes=5)[0], federate(hidden, nodes=5, seed=3)[0])


def test_weights_and_nodes_of_one_client_each_change_no_bit():
    run = settings(method="fedavg", partition="lda", alpha=0.5, weights="size", num_rounds=1)
    hidden = {**run, "secure-aggregation": "pairwise"}
    assert_same(federate(run, nodes=3)[0], federate(hidden, nodes=10)[0])


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("error", [RuntimeError("power cut"), ProtocolBroken("not with me")])
def test_a_node_lost_at_any_step_leaves_the_sum_of_the_others(step, error, monkeypatch):
    """Lost at the last step, it has sent its masked sum, which counts."""
    lost = set() if step == "unmask" else {2, 7}
    expected = without(monkeypatch, lost)
    lose(monkeypatch, step, {GONE}, error)
    found, strategy, _ = federate(SECURE, nodes=5)
    assert_same(expected, found)
    assert {failure.client for failure in strategy.report.failures} == lost
    assert len(strategy.report.results) == 10 - len(lost)


@pytest.mark.parametrize("step", STEPS)
def test_a_round_that_loses_too_many_nodes_gives_no_model(step, monkeypatch):
    """Of five parties four must stay."""
    lose(monkeypatch, step, {2, 3}, RuntimeError("power cut"))
    with pytest.raises(RoundFailed, match=r"has 3 nodes left and needs 4 of 5: .*power cut"):
        federate(SECURE, nodes=5)


@pytest.mark.parametrize(
    "change", [{"lr": 0.0}, {"weights": "uniform"}, {"server_round": 7}, {"cohort": 3}]
)
def test_a_server_that_gives_the_others_another_task_opens_nothing(change, monkeypatch):
    """With a rate of 0 they would send what they have got, and the rest is one node's update."""
    answer = ShuffledGrid.answer

    def told(self, message):
        node, records = message.metadata.dst_node_id, message.content.config_records
        if message.metadata.message_type == "train" and node != 100:
            records["task"] = replace(Task.from_record(records["task"]), **change).to_record()
        return answer(self, message)

    monkeypatch.setattr(ShuffledGrid, "answer", told)
    with pytest.raises(RoundFailed, match="gave a sum that no honest nodes can have sent"):
        federate(SECURE, nodes=5)


def test_a_server_that_gives_one_node_another_model_opens_nothing(monkeypatch):
    answer = ShuffledGrid.answer

    def told(self, message):
        if message.metadata.message_type == "train" and message.metadata.dst_node_id == 100:
            arrays = from_array_record(message.content.array_records["arrays"])
            name = next(iter(arrays))
            arrays[name].flat[0] += np.float32(1e-3)
            message.content["arrays"] = to_array_record(arrays)
        return answer(self, message)

    monkeypatch.setattr(ShuffledGrid, "answer", told)
    with pytest.raises(RoundFailed, match="gave a sum that no honest nodes can have sent"):
        federate(SECURE, nodes=5)


def test_two_nodes_are_too_few_to_hide_anything():
    with pytest.raises(RoundFailed, match="at least 3 nodes in a round, and round 1 has 2"):
        federate(SECURE, nodes=2)


def test_a_lost_node_ends_a_run_that_tolerates_no_failures(monkeypatch):
    lose(monkeypatch, "mask", {GONE}, RuntimeError("power cut"))
    with pytest.raises(RoundFailed, match=r"client 2 failed in round 1: .*power cut"):
        federate({**SECURE, "tolerate-failures": False}, nodes=5)


@pytest.mark.parametrize("change", ["shape", "type", "name"])
def test_a_masked_sum_of_the_wrong_form_is_left_out_with_its_masks(change, monkeypatch):
    expected = without(monkeypatch, {2, 7})

    def spoil(reply):
        if reply.metadata.src_node_id == 102 and ARRAYS in reply.content:
            arrays = view_array_record(reply.content.array_records[ARRAYS])
            first, *others = arrays
            changed = {
                "shape": {**arrays, first: arrays[first][:-1]},
                "type": {**arrays, first: arrays[first].astype(np.float64)},
                "name": {f"{first}s": arrays[first], **{name: arrays[name] for name in others}},
            }[change]
            reply.content[ARRAYS] = to_array_record(changed)
        return reply

    found, strategy, _ = federate(SECURE, nodes=5, tamper=spoil)
    assert_same(expected, found)
    assert {failure.client for failure in strategy.report.failures} == {2, 7}


def test_one_false_share_is_named_and_replaced_by_another_nodes(monkeypatch, caplog):
    expected = federate(RUN, nodes=5)[0]
    reveal = SecureNode.unmask

    def lying(self, asked):
        party = self.records.config_records["secure-aggregation"]["party"]
        answer = reveal(self, asked)
        if party == 2:
            answer["shares"] = [bytes(16) for _ in answer["shares"]]
        return answer

    monkeypatch.setattr(SecureNode, "unmask", lying)
    with caplog.at_level(logging.WARNING):
        assert_same(expected, federate(SECURE, nodes=5)[0])
    assert "node 101 has revealed a false share" in caplog.text
    with pytest.raises(RoundFailed, match="shares that the nodes have revealed are false"):
        federate({**SECURE, "secure-threshold": 1.0}, nodes=5)


def test_a_sum_out_of_range_is_refused(monkeypatch):
    """A node can send any masked numbers; the server sees it in the opened sum, not in theirs."""
    mask = SecureNode.mask

    def poisoned(self, groups, *more):
        if self.records.config_records["secure-aggregation"]["party"] == GONE:
            groups[ARRAYS]["head.bias"] += 2**62
        mask(self, groups, *more)

    monkeypatch.setattr(SecureNode, "mask", poisoned)
    with pytest.raises(RoundFailed, match=r"no honest nodes can have sent: .*'head.bias' is out"):
        federate(SECURE, nodes=5)


def received(run):
    """Return the bytes that the server gets as the model of node 101."""
    seen = []

    def note(reply):
        if reply.metadata.src_node_id == 101 and ARRAYS in reply.content:
            arrays = view_array_record(reply.content.array_records[ARRAYS])
            seen.append(b"".join(array.tobytes() for array in arrays.values()))
        return reply

    federate(run, nodes=3, tamper=note)
    return seen[0]


def chi_square(data):
    counts = np.bincount(np.frombuffer(data, np.uint8), minlength=256)
    expected = len(data) / 256
    return ((counts - expected) ** 2 / expected).sum()


def test_what_the_server_gets_from_a_node_is_uniform_and_differs_between_runs():
    one, other = received(SECURE), received(SECURE)
    assert chi_square(one) < 400  # 255 degrees of freedom: beyond it with probability 1e-8
    assert chi_square(other) < 400
    assert one != other
    same = np.frombuffer(one, np.uint8) == np.frombuffer(other, np.uint8)
    assert same.mean() == pytest.approx(1 / 256, abs=0.002)
    plain = received(RUN)
    assert chi_square(plain) > 10_000  # the test would see sums without masks


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"aggregation": "median"}, "aggregation 'median' needs every client's own model"),
        ({"method": "fedproto"}, r"server of method 'fedproto' needs more \(FedProto\)"),
        ({"method": "fedgen"}, r"server of method 'fedgen' needs more \(FedGen\)"),
        ({"method": "local"}, r"server of method 'local' needs more"),
        ({"participation": 0.2}, "at least 3 clients per round, but 2 are sampled"),
        ({"secure_threshold": 0.5}, "'secure-threshold' is 0.5 but must be greater than 0.5"),
    ],
)
def test_what_masks_would_hide_from_its_server_is_refused(changes, words):
    keys = {"method": "fedavg", "secure_aggregation": "pairwise", **changes}
    with pytest.raises(UserError, match=words):
        parse_config(settings(**keys))


@pytest.mark.parametrize("key", ["sealing", "masking"])
@pytest.mark.parametrize("copied", [True, False])
def test_a_node_whose_keys_all_others_would_refuse_is_left_out(key, copied, monkeypatch):
    """The last node to answer sends the first one's key, or one that gives no secret."""
    advertise, answers = SecureNode.advertise, {}

    def false(self, asked):
        answer = answers[asked["party"]] = advertise(self, asked)
        if len(answers) == 5:
            answer[key] = next(iter(answers.values()))[key] if copied else bytes(32)
        return answer

    with monkeypatch.context() as patched:
        patched.setattr(SecureNode, "advertise", false)
        found, strategy, _ = federate(SECURE, nodes=5)
    first, *_, last = answers
    party = max(first, last) if copied else last
    lost = {party - 1, party + 4}
    assert_same(without(monkeypatch, lost), found)
    assert {failure.client for failure in strategy.report.failures} == lost


@pytest.mark.parametrize("extra", ["", b"", []])
def test_an_answer_that_flower_cannot_count_is_a_failure_of_its_node(extra, monkeypatch):
    expected = without(monkeypatch, {2, 7})

    def spoil(reply):
        records = reply.content.config_records
        if reply.metadata.src_node_id == 102 and "secure-aggregation" in records:
            records["secure-aggregation"]["x"] = extra
        return reply

    found, strategy, _ = federate(SECURE, nodes=5, tamper=spoil)
    assert_same(expected, found)
    assert {failure.client for failure in strategy.report.failures} == {2, 7}
