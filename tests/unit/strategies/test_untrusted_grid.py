"""Nodes may be others' programs: a reply that is none harms nobody but its node."""

import pytest
from flwr.app import Message, RecordDict
from in_process import settings
from test_transport import questions

from fedapp.engines.in_process import InProcessGrid
from strategies.rounds.transport import exchange


class Untrusted(InProcessGrid):
    """A grid as Flower's, whose nodes may be others' programs; `change` spoils node 101's reply."""

    trusted = False

    def __init__(self, change):
        super().__init__(settings(num_clients=10), 3)
        self.change = change

    def answer(self, message):
        reply = Message(RecordDict(), reply_to=message)
        return self.change(reply) if message.metadata.dst_node_id == 101 else reply


class Malformed(Untrusted):
    """A grid in which the reply of node 101 can never be read."""

    def __init__(self):
        super().__init__(lambda reply: reply)
        self.unreadable = set()

    def pull_messages(self, message_ids):
        replies = list(super().pull_messages(message_ids))
        if any(reply.metadata.src_node_id == 101 for reply in replies):
            self.unreadable.update(message_ids)
        if self.unreadable & set(message_ids):
            raise KeyError("arraychunk_ids")
        return replies


def in_the_name_of_another(reply):
    reply.metadata.__dict__["_src_node_id"] = 100
    return reply


def test_a_reply_that_is_no_message_is_an_error_of_its_node_alone():
    replies = {r.metadata.src_node_id: r for r in exchange(Malformed(), questions(), 60)}
    assert {node: reply.has_error() for node, reply in replies.items()} == {
        100: False, 101: True, 102: False
    }  # fmt: skip
    assert "its reply cannot be read (KeyError('arraychunk_ids'))" in replies[101].error.reason


def test_a_reply_counts_for_the_node_that_was_asked_whatever_it_claims():
    sources = [
        reply.metadata.src_node_id
        for reply in exchange(Untrusted(in_the_name_of_another), questions(), 60)
    ]
    assert sorted(sources) == [100, 101, 102]


def test_what_answers_no_question_is_dropped():
    """Flower hands any message for the server to whoever pulls, also one that is no reply."""

    class WithForeign(Untrusted):
        def pull_messages(self, message_ids):
            foreign = Message(RecordDict(), reply_to=questions()[1])
            foreign.metadata.__dict__["_reply_to_message_id"] = ""
            return [foreign, *super().pull_messages(message_ids)]

    replies = list(exchange(WithForeign(lambda reply: reply), questions(), 60))
    assert sorted(reply.metadata.src_node_id for reply in replies) == [100, 101, 102]
    assert all(reply.metadata.reply_to_message_id.startswith("message-") for reply in replies)


def test_an_error_of_the_connection_is_not_the_nodes():
    class Broken(Untrusted):
        def pull_messages(self, message_ids):
            raise ConnectionError("the SuperLink has gone")

    with pytest.raises(ConnectionError):
        list(exchange(Broken(None), questions(), 60))


def test_a_malformed_message_that_nobody_asked_for_harms_no_node():
    """The SuperLink hands it out with the next look, whichever node is asked."""

    class WithForeign(Untrusted):
        looks = 0

        def pull_messages(self, message_ids):
            self.looks += 1
            if self.looks == 1:
                raise KeyError("foreign")
            return super().pull_messages(message_ids)

    replies = list(exchange(WithForeign(lambda reply: reply), questions(), 60))
    assert sorted(r.metadata.src_node_id for r in replies if not r.has_error()) == [100, 101, 102]
