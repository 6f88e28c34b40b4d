"""Sending a round's messages and taking the replies one by one, as they arrive.

Flower's own `send_and_receive` sleeps up to three seconds between looks and hands over all replies
at the end. Here the waiting starts at a few milliseconds and grows with the time already waited,
and each reply can be reduced and dropped before the next one comes.
"""

import time
from collections.abc import Iterable, Iterator

from flwr.app import Message
from flwr.serverapp import Grid

_SHORTEST_WAIT = 0.005
_LONGEST_WAIT = 0.5
_AT_ONCE = 8  # replies held in memory at a time, however large the cohort


def exchange(grid: Grid, messages: Iterable[Message], timeout: float) -> Iterator[Message]:
    """Push `messages` and yield their replies in order of arrival, for at most `timeout` seconds.

    Replies that did not come in time are simply absent: the caller knows whom it asked.
    """
    waiting = [message_id for message_id in grid.push_messages(messages) if message_id]
    start = time.monotonic()
    idle = 0  # messages in a row that had no reply
    while waiting:
        asked, waiting = waiting[:_AT_ONCE], waiting[_AT_ONCE:]
        replies = list(grid.pull_messages(asked))
        answered = {reply.metadata.reply_to_message_id for reply in replies}
        waiting += [message_id for message_id in asked if message_id not in answered]
        while replies:
            yield replies.pop()
        idle = 0 if answered else idle + len(asked)
        waited = time.monotonic() - start
        if waited > timeout:
            return
        if waiting and idle >= len(waiting):
            idle = 0
            # about 2 % of the time already waited: short rounds stay short, long ones poll rarely
            time.sleep(min(_LONGEST_WAIT, max(_SHORTEST_WAIT, 0.02 * waited)))


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
