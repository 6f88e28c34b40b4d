"""Sending a round's messages and taking the replies one by one, as they arrive.

Flower's own `send_and_receive` sleeps up to three seconds between looks and hands over all replies
at the end. Here the waiting starts at a few milliseconds and grows with the time already waited,
and each reply can be reduced and dropped before the next one comes. A node that is lost is named as
soon as that is known: when the SuperLink misses its heartbeats, or when the node was started again
and has forgotten what it was asked.
"""

import time
from collections.abc import Iterable, Iterator

from flwr.app import Error, Message, RecordDict
from flwr.serverapp import Grid

_SHORTEST_WAIT = 0.005
_LONGEST_WAIT = 0.5
_AT_ONCE = 8  # replies held in memory at a time, however large the cohort
_LOOK_FOR_RESTARTS = 5.0  # seconds
_RESTARTED_REASON = "its SuperNode was started again and has lost this round's task"
RESTARTED = 900  # code of an error reply made here; Flower's own end far below


def exchange(grid: Grid, messages: Iterable[Message], timeout: float) -> Iterator[Message]:
    """Push `messages` and yield their replies in order of arrival, for at most `timeout` seconds.

    Every reply has the asked node as its source, error replies too, which the SuperLink gives in
    the place of a lost node. Replies that did not come in time are simply absent: the caller knows
    whom it asked. A message that a node has not fetched by then is dropped, so that a straggler
    does not work off rounds that are over.
    """
    started = _starts(grid)
    asked = _push(grid, messages, timeout)
    waiting = list(asked)
    start = looked = time.monotonic()
    idle = 0  # messages in a row that had no reply
    while waiting:
        batch, waiting = waiting[:_AT_ONCE], waiting[_AT_ONCE:]
        replies = [_named(reply, asked) for reply in grid.pull_messages(batch)]
        answered = {reply.metadata.reply_to_message_id for reply in replies}
        waiting += [message_id for message_id in batch if message_id not in answered]
        while replies:
            yield replies.pop()
        idle = 0 if answered else idle + len(batch)
        now = time.monotonic()
        if now - start > timeout:
            return
        if waiting and now - looked > _LOOK_FOR_RESTARTS:
            looked, again = now, _starts(grid)
            for message_id in [m for m in waiting if _restarted(asked[m], started, again)]:
                waiting.remove(message_id)
                yield _error(RESTARTED, _RESTARTED_REASON, asked[message_id], message_id)
        if waiting and idle >= len(waiting):
            idle = 0
            # about 2 % of the time already waited: short rounds stay short, long ones poll rarely
            time.sleep(min(_LONGEST_WAIT, max(_SHORTEST_WAIT, 0.02 * (now - start))))


def _push(grid: Grid, messages: Iterable[Message], timeout: float) -> dict[str, Message]:
    """Push messages that live for `timeout` seconds; returns their ids and empty copies."""
    messages = list(messages)
    for message in messages:
        message.metadata.ttl = timeout
    ids = grid.push_messages(messages)
    asked = dict(zip(ids, map(_empty, messages), strict=True))
    asked.pop("", None)  # a node that nobody knows
    return asked


def _empty(message: Message) -> Message:
    """Return a message to the same node without content, to reply to when the arrays are gone."""
    kind, node = message.metadata.message_type, message.metadata.dst_node_id
    return Message(RecordDict(), dst_node_id=node, message_type=kind)


def _error(code: int, reason: str, question: Message, message_id: str) -> Message:
    """Return an error reply of the node that was asked."""
    question.metadata.__dict__["_message_id"] = message_id
    return Message(Error(code, reason), reply_to=question)


def _named(reply: Message, asked: dict[str, Message]) -> Message:
    """Return an error that the SuperLink made, with its own id as source, as the node's."""
    message_id = reply.metadata.reply_to_message_id
    if not reply.has_error() or message_id not in asked:
        return reply
    return _error(reply.error.code, reply.error.reason or "", asked[message_id], message_id)


def _starts(grid: Grid) -> dict[int, str]:
    """Return when each node was last started, as far as the grid knows."""
    return {node.node_id: node.last_activated_at for node in grid.get_nodes()}


def _restarted(question: Message, before: dict[int, str], now: dict[int, str]) -> bool:
    node = question.metadata.dst_node_id
    return node in before and before[node] != now.get(node, before[node])


def payload_bytes(message: Message) -> int:
    """Return the bytes of all records in a message, as Flower counts them."""
    if not message.has_content():
        return 0
    return sum(record.count_bytes() for record in message.content.values())


def release(message: Message) -> None:
    """Drop a message's arrays now: Flower's objects refer to each other and are freed late."""
    if message.has_content():
        for record in message.content.array_records.values():
            record.clear()
