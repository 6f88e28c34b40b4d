"""Send a round's messages and yield the replies one by one, as they arrive.

Flower's `send_and_receive` sleeps up to three seconds between polls and returns all replies at the
end. Here the sleep starts at a few milliseconds and grows with the time already waited, and each
reply can be reduced and freed before the next one. A node that is stopped, or that sends no
heartbeat for a minute, is reported as soon as the SuperLink knows.
"""

import time
from collections.abc import Iterable, Iterator

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from strategies.aggregate import Arrays

_SHORTEST_WAIT = 0.005
_LONGEST_WAIT = 0.5
_GRACE = 5.0  # seconds that a message outlives its round, to report late nodes as late
_AT_ONCE = 8  # most replies in memory at a time, for any cohort size


def exchange(grid: Grid, messages: Iterable[Message], timeout: float) -> Iterator[Message]:
    """Push `messages` and yield their replies in order of arrival, for at most `timeout` seconds.

    Every reply has the addressed node as its source. This includes the error replies that the
    SuperLink makes for a lost node. Late replies are absent: the caller knows which nodes it
    addressed. Replies that are at the SuperLink when the time ends are still yielded. A message
    that a node has not fetched by then is dropped, so that a slow node does not train for past
    rounds.
    """
    sent = _push(grid, messages, timeout)
    waiting = list(sent)
    start = time.monotonic()
    timed_out = False
    while waiting and not timed_out:
        timed_out = time.monotonic() - start > timeout  # set before the last poll
        answered: set[str] = set()
        for first in range(0, len(waiting), _AT_ONCE):
            batch = waiting[first : first + _AT_ONCE]
            replies = [_with_source(reply, sent) for reply in grid.pull_messages(batch)]
            answered |= {reply.metadata.reply_to_message_id for reply in replies}
            while replies:
                yield replies.pop()
        waiting = [message_id for message_id in waiting if message_id not in answered]
        if waiting and not answered and not timed_out:
            # about 2 % of the time already waited: short rounds stay short, long rounds poll rarely
            waited = time.monotonic() - start
            time.sleep(min(_LONGEST_WAIT, max(_SHORTEST_WAIT, 0.02 * waited)))


def _push(grid: Grid, messages: Iterable[Message], timeout: float) -> dict[str, Message]:
    """Push messages that expire after the round; returns their ids and empty copies."""
    messages = list(messages)
    for message in messages:
        message.metadata.ttl = timeout + _GRACE
    ids = grid.push_messages(messages)
    sent = dict(zip(ids, map(_empty, messages), strict=True))
    sent.pop("", None)  # of an unknown node
    return sent


def _empty(message: Message) -> Message:
    """Return a message to the same node without content, as the target of error replies."""
    kind, node = message.metadata.message_type, message.metadata.dst_node_id
    return Message(RecordDict(), dst_node_id=node, message_type=kind)


def _with_source(reply: Message, sent: dict[str, Message]) -> Message:
    """Return the reply; an error that the SuperLink made gets the node as its source."""
    message_id = reply.metadata.reply_to_message_id
    if not reply.has_error() or message_id not in sent:
        return reply
    request = sent[message_id]
    set_message_id(request, message_id)
    return Message(reply.error, reply_to=request)


def set_message_id(message: Message, message_id: str) -> None:
    """Set a message's id, to which a reply refers.

    `Metadata` has no setter for it; Flower's grids set it in the same way.
    """
    message.metadata.__dict__["_message_id"] = message_id


def payload_bytes(message: Message) -> int:
    """Return the bytes of all records in a message, as Flower counts them."""
    if not message.has_content():
        return 0
    return sum(record.count_bytes() for record in message.content.values())


def array_bytes(*groups: Arrays) -> int:
    """Return the bytes of the values in groups of arrays."""
    return sum(array.nbytes for arrays in groups for array in arrays.values())


def release(message: Message) -> None:
    """Free a message's arrays now: Flower's objects have reference cycles and are freed late."""
    if message.has_content():
        for record in message.content.array_records.values():
            record.clear()
