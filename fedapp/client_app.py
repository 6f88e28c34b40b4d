"""The ClientApp that Flower starts for a message. It answers itself or asks the warm worker.

A SuperNode starts one Python process per message. Importing PyTorch, reading the data and creating
a CUDA context in this process costs seconds per round. With node-config `worker="warm"` this module
does none of that: it passes the message to a long-lived process (`warm.py`). If no answer comes
from there, this process answers the message itself, with the same handlers.
"""

import logging
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, MessageType
from flwr.clientapp import ClientApp

from fedapp.core.errors import UserError
from fedapp.core.log import configure
from strategies.rounds.records import REPORT, TASK, unpack_failures
from strategies.secure.messages import CONFIRM, KEYS, SHARES, UNMASK

log = logging.getLogger(__name__)
WORKERS = ("plain", "warm")
_STEPS = [f"{MessageType.QUERY}.{kind}" for kind in (KEYS, SHARES, CONFIRM, UNMASK)]


class MessageApp(ClientApp):
    """A ClientApp that calls the handlers of `runtime/node/messages.py`, or the warm worker.

    It tells the operator of a SuperNode, in its log, what it has answered. In a simulation the
    server's log says it: only a SuperNode starts the program `flwr-clientapp`.
    """

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer one message; raises the exceptions of the handlers."""
        reply = _answer(message, context)
        if Path(sys.argv[0]).name == "flwr-clientapp":
            with suppress(Exception):  # a line of the log is not worth an answer
                for line in lines_of(message, reply):
                    log.info(line)
        return reply


def _answer(message: Message, context: Context) -> Message:
    """Let the warm worker answer, if the node has one, or the handlers in this process."""
    configure()
    worker = context.node_config.get("worker", "plain")
    if worker not in WORKERS:
        raise UserError(f"node-config key 'worker' is {worker!r} but must be plain or warm")
    if worker == "warm":
        from fedapp.engines.deployment.warm import WorkerLost, ask_worker  # needs a Unix system

        try:
            return ask_worker(message, context)
        except WorkerLost as reason:
            log.warning("the warm worker did not answer (%s): answering without it", reason)
    if message.metadata.message_type in _STEPS:
        from fedapp.runtime.node.secure import app as handlers
    else:
        from fedapp.runtime.node.messages import app as handlers  # imports PyTorch
    return handlers(message, context)


def lines_of(message: Message, reply: Message) -> list[str]:
    """Return what a node's answer to a message says: a line for each client, or a refusal."""
    kind, content = message.metadata.message_type, reply.content
    reports: Mapping[str, Any] = content.metric_records
    if kind.startswith(MessageType.QUERY):
        records = content.config_records.values()
        return [f"refused ({kind}): {each['error']!s}" for each in records if "error" in each]
    number = message.content.config_records[TASK]["server_round"]
    clients = reports.get(REPORT, {}).get("client", [])
    done = [f"client {client}: {kind} done" for client in clients]
    failed = [f"client {each.client} failed: {each.reason}" for each in unpack_failures(content)]
    return [f"round {number!s}, {line}" for line in [*done, *failed]]


app = MessageApp()
