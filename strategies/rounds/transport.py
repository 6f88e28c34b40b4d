"""Send a round's messages and yield the replies one by one, as they arrive.

Flower's `send_and_receive` sleeps up to three seconds between polls and returns all replies at the
end. Here the sleep starts at a few milliseconds and grows with the time already waited, and each
reply can be reduced and freed before the next one. A node that is stopped, or that sends no
heartbeat for a minute, is reported as soon as the SuperLink knows.
"""

import math
import struct
import time
from collections.abc import Iterable, Iterator

from flwr.app import Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from google.protobuf.message import DecodeError

from strategies.aggregate import Arrays
from strategies.rounds.interruption import stop_if_asked

_SHORTEST_WAIT = 0.005
_LONGEST_WAIT = 0.5
_GRACE = 5.0  # seconds that a message outlives its round, to report late nodes as late
_LONGEST_STEP = 5.0  # seconds that count between two looks: in a longer gap the process stood still
# What reading a message that is none may raise; errors of the connection are others.
MALFORMED = (
    LookupError, ValueError, TypeError, AttributeError, ArithmeticError, AssertionError,
    RecursionError, DecodeError, struct.error,
)  # fmt: skip
AT_ONCE = 8  # most replies in memory at a time, for any cohort size


def exchange(grid: Grid, messages: Iterable[Message], timeout: float) -> Iterator[Message]:
    """Push `messages` and yield their replies in order of arrival, for at most `timeout` seconds.

    Every reply has the addressed node as its source. This includes the error replies that the
    SuperLink makes for a lost node. Late replies are absent: the caller knows which nodes it
    addressed. Replies that are at the SuperLink when the time ends are still yielded. A message
    that a node has not fetched by then is dropped, so that a slow node does not train for past
    rounds. In a simulation the time during which this process was stopped, or its host asleep, does
    not count.
    """
    sent = Requests(grid)
    sent.send(messages, timeout)
    clock = sent.clock
    timed_out = False
    while sent.waiting and not timed_out:
        timed_out = clock.seconds() > timeout  # set before the last poll
        before = len(sent.waiting)
        yield from sent.arrived()
        if len(sent.waiting) == before and not timed_out:
            pause(clock.seconds())


class AwakeClock:
    """Seconds since its start, without those in which the process did not run.

    Whoever waits asks often. A long gap between two questions is a suspended laptop or a stopped
    process, during which the nodes of this machine could not answer either.
    """

    def __init__(self, longest: float = _LONGEST_STEP) -> None:
        """Start at 0 seconds; `longest` is what counts of a gap."""
        self._seconds, self._asked, self._longest = 0.0, time.monotonic(), longest

    def seconds(self) -> float:
        """Return the seconds so far."""
        now = time.monotonic()
        self._seconds += min(now - self._asked, self._longest)
        self._asked = now
        return self._seconds


class Requests:
    """Messages that wait for their replies; further ones may be sent at any time."""

    def __init__(self, grid: Grid) -> None:
        """Prepare requests over a grid, with nothing sent; their clock starts."""
        self.grid, self.trusted = grid, getattr(grid, "trusted", False)
        # nodes elsewhere go on while this process sleeps, and the SuperLink counts their time
        self.clock = AwakeClock(_LONGEST_STEP if self.trusted else math.inf)
        self.waiting: dict[str, Message] = {}  # empty copies of messages without reply, by id
        self.unread: set[str] = set()  # of these, where the last look could not be read

    def send(self, messages: Iterable[Message], timeout: float) -> None:
        """Push messages, which expire after `timeout` seconds; skips those of unknown nodes.

        Messages may have been made long before: nodes may first have exchanged keys.
        """
        messages = list(messages)
        for message in messages:
            age = time.time() - message.metadata.created_at
            message.metadata.ttl = age + timeout + _GRACE
        ids = self.grid.push_messages(messages) if messages else []
        self.waiting |= zip(ids, map(_empty, messages), strict=True)
        self.waiting.pop("", None)  # of an unknown node

    def arrived(self) -> Iterator[Message]:
        """Look once at all messages, and yield the replies that are there.

        Raises KeyboardInterrupt if the server was asked to stop.
        """
        stop_if_asked()
        ids = list(self.waiting)
        step = AT_ONCE if self.trusted else 1
        for first in range(0, len(ids), step):
            asked = ids[first : first + step]
            replies = list(self.grid.pull_messages(asked)) if self.trusted else self._pulled(asked)
            self.clock.seconds()  # a look at many nodes takes long
            while replies:
                reply = replies.pop()
                answered = reply.metadata.reply_to_message_id  # a node cannot guess another's
                request = self.waiting.pop(answered, None) if answered in asked else None
                if request is not None:
                    yield _with_source(reply, request, answered)

    def _pulled(self, asked: list[str]) -> list[Message]:
        """Return the reply to a message, if it is there; one that is no message is an error.

        The SuperLink adds messages that nobody asked for, from any node, so one look that cannot be
        read says nothing about the node that was asked. Two in a row do.
        """
        try:
            replies = list(self.grid.pull_messages(asked))
        except MALFORMED as error:
            if asked[0] not in self.unread:
                self.unread.add(asked[0])
                return []
            reason, request = f"its reply cannot be read ({error!r})", self.waiting[asked[0]]
            set_message_id(request, asked[0])
            return [Message(Error(ErrorCode.UNKNOWN, reason), reply_to=request)]
        self.unread.difference_update(asked)
        return replies


def _with_source(reply: Message, request: Message, message_id: str) -> Message:
    """Return a reply whose source is the node that was asked, also of an error of the SuperLink."""
    if reply.has_error():
        set_message_id(request, message_id)
        return Message(reply.error, reply_to=request)
    reply.metadata.__dict__["_src_node_id"] = request.metadata.dst_node_id
    return reply


def pause(waited: float) -> None:
    """Sleep 2 % of the seconds already waited: short waits stay short, long ones poll rarely."""
    time.sleep(min(_LONGEST_WAIT, max(_SHORTEST_WAIT, 0.02 * waited)))


def _empty(message: Message) -> Message:
    """Return a message to the same node without content, as the target of error replies."""
    kind, node = message.metadata.message_type, message.metadata.dst_node_id
    return Message(RecordDict(), dst_node_id=node, message_type=kind)


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
