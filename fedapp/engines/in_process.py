"""A whole run in this process, with Flower's messages and without Flower's processes.

It uses the real ServerApp, strategies, messages and ClientApp handlers, with a `Grid` whose nodes
answer in this process. Such a run needs little more start time than the import of torch, and gives
the same bits as a simulation or real SuperNodes. Many such runs can share a machine, as in sweeps.
"""

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flwr.app import Message

from fedapp.config.effect import without_effect
from fedapp.config.project import merge
from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError
from fedapp.core.log import configure
from fedapp.engines.local_grid import LocalGrid, answer
from fedapp.engines.resources import Resources, check_in_process, check_simulated
from fedapp.runtime.node.messages import app as client_app
from fedapp.runtime.process.context import close_process
from fedapp.runtime.process.run_data import clear_data_cache
from fedapp.server_app import run as train

log = logging.getLogger(__name__)


class InProcessGrid(LocalGrid):
    """Nodes in this process; pulling a node's reply runs its ClientApp."""

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Let one node answer and return its reply, so that only one reply is in memory."""
        for message_id in message_ids:
            if message_id in self.waiting:
                self.awaited.pop(message_id, None)
                return [self.answer(self.waiting.pop(message_id))]
        return []

    def answer(self, message: Message) -> Message:
        """Let a message's node answer it."""
        return answer(client_app, message, self.contexts[message.metadata.dst_node_id])


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
    values = merge(project, overrides)
    check_in_process(resources, str(values["device"]))
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
