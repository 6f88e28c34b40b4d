"""Nodes of this machine, for the engines that run without Flower's processes.

The messages are Flower's. `LocalGrid` queues them, and its subclasses let the nodes answer: in this
process (`in_process.py`) or in worker processes (`workers.py`).
"""

import time
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from strategies.rounds.transport import AwakeClock, exchange, set_message_id

FIRST_NODE = 100
_LONGEST = 7 * 86400.0  # seconds, the default timeout


class LocalGrid(Grid):
    """Nodes 100, 101, ... and the messages that wait for them; a subclass pulls the replies."""

    trusted = True  # its nodes are this program: no reply is forged

    def __init__(
        self,
        run_config: Mapping[str, Any],
        nodes: int = 1,
        node_config: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Create `nodes` nodes; node p hosts the clients c with c mod `nodes` = p.

        `node_config` is added to the node-config of all nodes.
        """
        set_task_ids()
        self.contexts = {
            FIRST_NODE + p: Context(
                run_id=1, node_id=FIRST_NODE + p, state=RecordDict(), run_config=dict(run_config),
                node_config={"partition-id": p, "num-partitions": nodes, **node_config},
            )
            for p in range(nodes)
        }  # fmt: skip
        self.waiting: dict[str, Message] = {}
        self.sent = 0
        self.awaited: dict[str, float] = {}  # until when somebody waits for a reply, by message id
        self._clock = AwakeClock()

    def set_run(self, run: Any) -> None:
        """Ignore the run, because there is only one."""

    @property
    def run(self) -> Any:
        """Return None: only Flower's own servers use it."""
        return None

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        """Return a message, as Flower's grids do."""
        return Message(*args, **kwargs)

    def get_node_ids(self) -> list[int]:
        """Return the ids of all nodes."""
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Queue messages for the nodes and return their ids; drop those of past rounds."""
        self.drop_expired()
        now, ids = self._clock.seconds(), []
        for message in messages:
            self.sent += 1
            message_id = f"message-{self.sent}"
            set_message_id(message, message_id)
            self.waiting[message_id] = message
            self.awaited[message_id] = now + _remaining(message)
            ids.append(message_id)
        return ids

    def drop_expired(self) -> None:
        """Drop the messages for whose replies nobody waits any more."""
        now = self._clock.seconds()
        self.awaited = {i: end for i, end in self.awaited.items() if now <= end}
        self.waiting = {i: message for i, message in self.waiting.items() if i in self.awaited}

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Return all replies at once."""
        return list(exchange(self, messages, _LONGEST if timeout is None else timeout))


def _remaining(message: Message) -> float:
    """Return the seconds for which somebody will wait for the reply to a message."""
    return message.metadata.created_at + message.metadata.ttl - time.time()


def failed(reason: str) -> Error:
    """Return the error of a node whose ClientApp has raised an exception or has ended."""
    return Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason)


def answer(app: ClientApp, message: Message, context: Context) -> Message:
    """Run the ClientApp on a message; an exception becomes an error reply, as in Flower."""
    try:
        return app(message, context)
    except Exception as error:
        return Message(failed(repr(error)), reply_to=message)


def set_task_ids() -> None:
    """Set the task's ids, which Flower's processes get at their start."""
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
