"""A whole run in this process, with Flower's messages and without Flower's processes.

It uses the real ServerApp, strategies, messages and ClientApp handlers, with a `Grid` whose nodes
answer in this process. Such a run needs little more start time than the import of torch, and gives
the same bits as a simulation or real SuperNodes. Many such runs can share a machine, as in sweeps.
"""

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedapp.config.effect import without_effect
from fedapp.config.project import merge
from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError
from fedapp.core.log import configure
from fedapp.engines.resources import Resources, check_in_process, check_simulated
from fedapp.runtime.client import app as client_app
from fedapp.runtime.process import close_process
from fedapp.runtime.run_data import clear_data_cache
from fedapp.server_app import run as train
from strategies.rounds.transport import exchange, set_message_id

log = logging.getLogger(__name__)
FIRST_NODE = 100
_LONGEST = 7 * 86400.0  # seconds, the default timeout


class InProcessGrid(Grid):
    """Nodes 100, 101, ... in this process; pulling a node's reply runs its ClientApp."""

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
        self.waiting = {i: message for i, message in self.waiting.items() if not expired(message)}
        ids = []
        for message in messages:
            self.sent += 1
            message_id = f"message-{self.sent}"
            set_message_id(message, message_id)
            self.waiting[message_id] = message
            ids.append(message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Let one node answer and return its reply, so that only one reply is in memory."""
        for message_id in message_ids:
            if message_id in self.waiting:
                return [self.answer(self.waiting.pop(message_id))]
        return []

    def answer(self, message: Message) -> Message:
        """Let a message's node answer it."""
        return answer(client_app, message, self.contexts[message.metadata.dst_node_id])

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Return all replies at once."""
        return list(exchange(self, messages, _LONGEST if timeout is None else timeout))


def run_in_process(
    project: Path,
    overrides: Mapping[str, Any],
    resources: Resources,
    typed: Sequence[str] = (),
) -> int:
    """Run one training in this process; return 0 if it completed, otherwise 1.

    The number of nodes is that of `resources`, by default one; it changes no bit of the result.
    Without a share of a GPU there, device "auto" is the CPU. Of the keys in `typed`, the log names
    those without effect. Raises UserError for an invalid configuration, or more than one worker.
    """
    started = time.monotonic()
    configure()
    check_in_process(resources.workers)
    values = merge(project, overrides)
    if resources.gpus == 0 and values["device"] == "auto":
        values["device"] = "cpu"
    config = parse_config(values)
    check_simulated(config.num_clients, config.partition)
    if note := without_effect(typed, config):
        log.warning(note)
    close_process()  # of an earlier run in this process, whose data files may have changed
    clear_data_cache()
    try:
        train(InProcessGrid(values, max(1, resources.nodes)), values, "", started)
    except UserError as error:
        log.error("fedapp: %s", error)
        return 1
    return 0


def expired(message: Message) -> bool:
    """Return whether nobody waits for the reply to a message any more."""
    return time.time() > message.metadata.created_at + message.metadata.ttl


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
