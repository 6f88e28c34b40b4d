"""Sending a round's messages and taking the replies one by one, as they arrive.

Flower's own `send_and_receive` sleeps up to three seconds between looks and hands over all replies
at the end. Here the waiting starts at a few milliseconds and grows with the time already waited,
and each reply can be reduced and dropped before the next one comes. A node that is stopped, or
whose heartbeats stay away for a minute, is named as soon as the SuperLink knows.
"""

import time
from collections.abc import Iterable, Iterator

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from strategies.aggregate import Arrays

_SHORTEST_WAIT = 0.005
_LONGEST_WAIT = 0.5
_GRACE = 5.0  # seconds that a message outlives its round, so that a late node is called late
_AT_ONCE = 8  # replies held in memory at a time, however large the cohort


def exchange(grid: Grid, messages: Iterable[Message], timeout: float) -> Iterator[Message]:
    """Push `messages` and yield their replies in order of arrival, for at most `timeout` seconds.

    Every reply has the asked node as its source, error replies too, which the SuperLink gives in
    the place of a lost node. Replies that did not come in time are simply absent: the caller knows
    whom it asked. Those that wait at the SuperLink when the time is over are still taken. A message
    that a node has not fetched by then is dropped, so that a straggler does not work off rounds
    that are over.
    """
    asked = _push(grid, messages, timeout)
    waiting = list(asked)
    start = time.monotonic()
    over = False
    while waiting and not over:
        over = time.monotonic() - start > timeout  # before the last look, which is at everybody
        answered: set[str] = set()
        for first in range(0, len(waiting), _AT_ONCE):
            batch = waiting[first : first + _AT_ONCE]
            replies = [_named(reply, asked) for reply in grid.pull_messages(batch)]
            answered |= {reply.metadata.reply_to_message_id for reply in replies}
            while replies:
                yield replies.pop()
        waiting = [message_id for message_id in waiting if message_id not in answered]
        if waiting and not answered and not over:
            # about 2 % of the time already waited: short rounds stay short, long ones poll rarely
            waited = time.monotonic() - start
            time.sleep(min(_LONGEST_WAIT, max(_SHORTEST_WAIT, 0.02 * waited)))


def _push(grid: Grid, messages: Iterable[Message], timeout: float) -> dict[str, Message]:
    """Push messages that expire after the round; returns their ids and empty copies."""
    messages = list(messages)
    for message in messages:
        message.metadata.ttl = timeout + _GRACE
    ids = grid.push_messages(messages)
    asked = dict(zip(ids, map(_empty, messages), strict=True))
    asked.pop("", None)  # a node that nobody knows
    return asked


def _empty(message: Message) -> Message:
    """Return a message to the same node without content, to reply to when the arrays are gone."""
    kind, node = message.metadata.message_type, message.metadata.dst_node_id
    return Message(RecordDict(), dst_node_id=node, message_type=kind)


def _named(reply: Message, asked: dict[str, Message]) -> Message:
    """Return an error that the SuperLink made, with its own id as source, as the node's."""
    message_id = reply.metadata.reply_to_message_id
    if not reply.has_error() or message_id not in asked:
        return reply
    question = asked[message_id]
    set_message_id(question, message_id)
    return Message(reply.error, reply_to=question)


def set_message_id(message: Message, message_id: str) -> None:
    """Give a message its id, which a reply to it names.

    `Metadata` has no setter for it: Flower's own grids write it in this way, too.
    """
    message.metadata.__dict__["_message_id"] = message_id


def payload_bytes(message: Message) -> int:
    """Return the bytes of all records in a message, as Flower counts them."""
    if not message.has_content():
        return 0
    return sum(record.count_bytes() for record in message.content.values())


def array_bytes(*groups: Arrays) -> int:
    """Return the bytes of the values of some groups of arrays."""
    return sum(array.nbytes for arrays in groups for array in arrays.values())


def release(message: Message) -> None:
    """Drop a message's arrays now: Flower's objects refer to each other and are freed late."""
    if message.has_content():
        for record in message.content.array_records.values():
            record.clear()
