"""What a SuperNode's log says for its operator: trainings, failures and refusals."""

import logging
import sys

import pytest
from flwr.app import ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from in_process import InProcessGrid, settings

from fedapp.client_app import app, lines_of
from fedapp.engines.local_grid import set_task_ids
from strategies.rounds.records import ERROR, REPORT, TASK, ClientFailure, failures_of, pack_report

set_task_ids()
TRAIN = Message(
    RecordDict({TASK: ConfigRecord({"server_round": 3})}),
    dst_node_id=1, message_type=MessageType.TRAIN,
)  # fmt: skip
QUERY = Message(RecordDict(), dst_node_id=1, message_type=MessageType.QUERY)


def test_a_training_and_a_failure_are_lines_of_their_clients():
    content = pack_report([], [ClientFailure(4, ERROR, "no disk")])
    content[REPORT] = MetricRecord({"client": [1, 2]})
    assert lines_of(TRAIN, Message(content, reply_to=TRAIN)) == [
        "round 3, client 1: train done",
        "round 3, client 2: train done",
        "round 3, client 4 failed: no disk",
    ]


def test_a_refusal_is_a_line_and_a_good_answer_is_none():
    identity = ConfigRecord({"error": "no images"})
    refusal = Message(RecordDict({"identity": identity}), reply_to=QUERY)
    assert lines_of(QUERY, refusal) == ["refused (query): no images"]
    good = Message(RecordDict({"identity": ConfigRecord({"host": "a"})}), reply_to=QUERY)
    assert lines_of(QUERY, good) == []
    assert lines_of(TRAIN, Message(pack_report([], failures_of([7], "late")), reply_to=TRAIN)) == [
        "round 3, client 7 failed: late"
    ]


@pytest.mark.parametrize("program", ["flwr-clientapp", "fedapp"])
def test_only_a_supernode_logs_its_answers(monkeypatch, caplog, program):
    monkeypatch.setattr(sys, "argv", [f"/bin/{program}"])
    grid = InProcessGrid(settings(method="fedavg", num_clients=4, shards=5), 2)
    context = grid.contexts[100]
    del context.node_config["partition-id"]
    monkeypatch.setattr(logging.getLogger("fedapp"), "propagate", True)
    with caplog.at_level(logging.INFO):
        app(Message(RecordDict(), dst_node_id=100, message_type=MessageType.QUERY), context)
    assert ("refused (query)" in caplog.text) == (program == "flwr-clientapp")
