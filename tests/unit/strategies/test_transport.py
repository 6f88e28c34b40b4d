"""Lost nodes are named as soon as anybody knows, and stragglers are not asked twice."""

import logging
import time

import pytest
from flwr.app import Error, Message, MessageType, RecordDict
from flwr.server.superlink.linkstate.utils import create_message_error_unavailable_res_message
from in_process import settings

from fedapp.core.errors import UserError
from fedapp.engines.in_process import InProcessGrid
from fedapp.runtime.server.preflight import wait_for_nodes
from strategies.rounds import transport
from strategies.rounds.transport import Requests, exchange


class FaultyGrid(InProcessGrid):
    """Node 101 never answers by itself; `lost` says whether the SuperLink knows."""

    def __init__(self):
        super().__init__(settings(num_clients=10), 3)
        self.lost = False
        self.times_to_live = []

    def push_messages(self, messages):
        kept = list(messages)
        self.times_to_live += [message.metadata.ttl for message in kept]
        return super().push_messages(kept)

    def pull_messages(self, message_ids):
        for message_id in message_ids:
            question = self.waiting.get(message_id)
            if question is None:
                continue
            if question.metadata.dst_node_id != 101:
                return [self.answer(self.waiting.pop(message_id))]
            if self.lost:
                return [
                    create_message_error_unavailable_res_message(
                        self.waiting.pop(message_id).metadata, "node_unavail"
                    )
                ]
        return []


def questions() -> list[Message]:
    return [
        Message(RecordDict(), dst_node_id=node, message_type=MessageType.QUERY)
        for node in (100, 101, 102)
    ]


def by_node(replies) -> dict[int, Message]:
    return {reply.metadata.src_node_id: reply for reply in replies}


def test_the_superlinks_error_for_a_lost_node_carries_the_nodes_name():
    grid = FaultyGrid()
    grid.lost = True
    replies = by_node(exchange(grid, questions(), 60))
    assert set(replies) == {100, 101, 102}
    assert "Node Unavailable" in replies[101].error.reason
    assert replies[101].metadata.reply_to_message_id == "message-2"


def test_a_silent_node_is_left_out_after_the_timeout_and_its_message_expires():
    grid = FaultyGrid()
    grid.answer = lambda message: Message(RecordDict(), reply_to=message)
    assert set(by_node(exchange(grid, questions(), 0.5))) == {100, 102}
    assert grid.times_to_live == pytest.approx([5.5] * 3, abs=0.2)


def test_answered_messages_are_forgotten():
    grid = InProcessGrid(settings(num_clients=10), 3)
    grid.answer = lambda message: Message(RecordDict(), reply_to=message)
    assert len(by_node(exchange(grid, questions(), 60))) == 3
    assert grid.awaited == {}


def test_a_message_that_is_sent_late_lives_as_long_as_its_round(monkeypatch):
    """Its life begins when it is made, and the nodes may have exchanged keys since."""
    asked, grid = questions(), FaultyGrid()
    later = time.time() + 40
    monkeypatch.setattr("strategies.rounds.transport.time.time", lambda: later)
    Requests(grid).send(asked, 10)
    assert grid.times_to_live == pytest.approx([55.0] * 3, abs=0.2)


def test_the_time_in_which_the_process_was_stopped_does_not_count(monkeypatch):
    class Stopped(FaultyGrid):
        """The process stops for a second at the first look; node 101 answers at the fourth."""

        looks = 0

        def pull_messages(self, message_ids):
            self.looks += 1
            time.sleep(1.0 if self.looks == 1 else 0.0)
            self.lost = self.looks >= 4
            return super().pull_messages(message_ids)

    grid = Stopped()
    grid.answer = lambda message: Message(RecordDict(), reply_to=message)
    monkeypatch.setattr(transport, "_LONGEST_STEP", 0.1)
    assert set(by_node(exchange(grid, questions(), 0.5))) == {100, 101, 102}


def test_replies_that_wait_when_the_time_is_over_are_taken_from_all_nodes():
    """The first look at twenty nodes is at eight of them, and reducing their replies takes long."""

    class Answered(InProcessGrid):
        def pull_messages(self, message_ids):
            ready = [self.waiting.pop(m) for m in message_ids if m in self.waiting]
            return [Message(RecordDict(), reply_to=message) for message in ready]

    grid = Answered(settings(num_clients=20), 20)
    asked = [
        Message(RecordDict(), dst_node_id=node, message_type=MessageType.QUERY)
        for node in grid.get_node_ids()
    ]
    taken = []
    for reply in exchange(grid, asked, 0.05):
        time.sleep(0.02)
        taken.append(reply.metadata.src_node_id)
    assert sorted(taken) == grid.get_node_ids()


def test_a_node_that_does_not_answer_before_round_1_is_named():
    sentence = (
        r"3 of 10 clients have no node \(first: client 1\); 3 nodes are connected, and 2 have "
        "answered: node 101 does not answer, so look at its log, or raise round-timeout"
    )
    with pytest.raises(UserError, match=sentence):
        wait_for_nodes(FaultyGrid(), 10, {}, 2)


def test_the_log_says_how_many_nodes_train_on_a_gpu(caplog):
    class OneGPU(InProcessGrid):
        def answer(self, message):
            reply = super().answer(message)
            if message.metadata.dst_node_id == 101:
                reply.content["identity"]["device"] = "cuda"
            return reply

    for kind, devices in ((OneGPU, " (2 on cpu, 1 on cuda)"), (InProcessGrid, "")):
        caplog.clear()
        with caplog.at_level(logging.INFO):
            wait_for_nodes(kind(settings(num_clients=10), 3), 10, {}, 30)
        assert f"examples{devices}\n" in caplog.text


def test_a_node_that_is_lost_before_round_1_may_come_back():
    class Returning(FaultyGrid):
        def pull_messages(self, message_ids):
            replies = super().pull_messages(message_ids)
            if any(reply.has_error() for reply in replies):
                self.lost = False
                self.contexts[103] = self.contexts.pop(101)
            return replies

    grid = Returning()
    grid.lost = True
    expected: dict[str, str] = {}
    federation = wait_for_nodes(grid, 10, expected, 30)
    assert set(federation.node_of.values()) == {100, 102, 103}


def test_a_node_without_key_may_come_back_with_another_number_before_round_1():
    class Restarted(InProcessGrid):
        """Node 102 comes when 100 has answered, and been started again as 200."""

        asked = ()

        def get_node_ids(self):
            known = super().get_node_ids()
            return known if 200 in self.asked else [node for node in known if node != 102]

        def push_messages(self, messages):
            messages = list(messages)
            self.asked += tuple(message.metadata.dst_node_id for message in messages)
            return super().push_messages(messages)

        def answer(self, message):
            reply = super().answer(message)
            if message.metadata.dst_node_id == 100:
                self.contexts[200] = self.contexts.pop(100)
            return reply

    federation = wait_for_nodes(Restarted(settings(num_clients=10), 3), 10, {}, 30)
    assert set(federation.node_of.values()) == {101, 102, 200}


def test_a_node_that_is_gone_for_a_moment_before_round_1_is_asked_again():
    class Flapping(InProcessGrid):
        """Node 100 answers, is away for a few looks, and comes back; 102 comes last."""

        looks = 0

        def get_node_ids(self):
            self.looks += 1
            away = {100} if 3 <= self.looks <= 5 else set()
            return [n for n in super().get_node_ids() if n not in away | {102} or self.looks > 9]

    federation = wait_for_nodes(Flapping(settings(num_clients=10), 3), 10, {}, 30)
    assert set(federation.node_of.values()) == {100, 101, 102}


def test_a_spare_node_that_does_not_answer_delays_nothing():
    class Spare(FaultyGrid):
        def get_node_ids(self):
            return [*super().get_node_ids(), 999]

        def push_messages(self, messages):
            known = [m for m in messages if m.metadata.dst_node_id != 999]
            return [*super().push_messages(known), "never answered"]

        def pull_messages(self, message_ids):
            asked = [each for each in message_ids if each != "never answered"]
            found = [self.waiting.pop(each) for each in asked if each in self.waiting]
            return [self.answer(message) for message in found]

    started = time.monotonic()
    federation = wait_for_nodes(Spare(), 10, {}, 30)
    assert federation.training_clients == 10
    assert time.monotonic() - started < 15


@pytest.mark.parametrize(
    ("first", "second", "pooled"),
    [
        ("partition-id=0 num-partitions=2", "partition-id=0 num-partitions=2", False),
        ("partition-id=0 num-partitions=2", "partition-id=2 num-partitions=4", False),
        ("partition-id=0 num-partitions=2", "partition-id=0 num-partitions=2", True),
        ("partition-id=0 num-partitions=2", "partition-id=1 num-partitions=3", True),
        ("partition-id=0 num-partitions=2 hosts=any", "partition-id=1 num-partitions=2", False),
        ("partition-id=0 num-partitions=2", "partition-id=1 num-partitions=2 hosts=any", False),
    ],
)
def test_nodes_that_do_not_fit_are_refused(first, second, pooled):
    grid = InProcessGrid(settings(num_clients=10), 2)
    for context, text in zip(grid.contexts.values(), (first, second), strict=True):
        values = dict(pair.split("=") for pair in text.split())
        context.node_config.clear()
        context.node_config.update(values | ({"hosts": "any"} if pooled else {}))
    sentence = (
        r"node 10\d \(partition \d of \d on .*\) and node 10\d \(partition \d of \d .* do not fit: "
        "give every SuperNode a partition-id of its own, and all of them the same num-partitions"
    )
    with pytest.raises(UserError, match=sentence):
        wait_for_nodes(grid, 10, {}, 5)


def test_a_node_that_comes_while_another_one_is_slow_is_queried_at_once():
    class Late(FaultyGrid):
        """Node 102 registers when 101 has been asked; 101 answers when 102 has been asked."""

        asked = ()

        def get_node_ids(self):
            return [n for n in super().get_node_ids() if n != 102 or 101 in self.asked]

        def push_messages(self, messages):
            messages = list(messages)
            self.asked += tuple(message.metadata.dst_node_id for message in messages)
            return super().push_messages(messages)

        def pull_messages(self, message_ids):
            if 102 in self.asked:
                return InProcessGrid.pull_messages(self, message_ids)
            return super().pull_messages(message_ids)

    assert wait_for_nodes(Late(), 10, {}, 5).training_clients == 10


def test_an_error_of_the_app_itself_keeps_its_text():
    grid = FaultyGrid()
    grid.answer = lambda message: Message(Error(2, "out of memory"), reply_to=message)
    replies = by_node(exchange(grid, questions(), 0.5))
    assert replies[100].error.reason == "out of memory"
