"""A simulation whose nodes are worker processes of this machine, without Ray.

The real ServerApp, messages and ClientApp, as in `in_process.py`, but each worker trains in a
process of its own. The workers are forked from one process that has imported PyTorch and the app,
beside the same imports of the server's: so they start together with it, and share those pages.
"""

import multiprocessing
import os
import signal
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pkgutil import resolve_name
from typing import Any

from flwr.app import Context, Error, Message, RecordDict

from fedapp.core.hardware import gpu_names
from fedapp.engines.apps import ConfiguredServerApp
from fedapp.engines.in_process import InProcessGrid, answer, identify
from fedapp.engines.resources import Resources, node_config
from fedapp.engines.subprocesses import call_after, install_signal_handlers
from fedapp.engines.worker_template import start_template, worker_context

_PATIENCE = 1.0  # seconds that one look for replies may take


class WorkerGrid(InProcessGrid):
    """Nodes whose messages are answered by worker processes; node p is on worker p mod workers."""

    def __init__(self, run_config: Mapping[str, Any], resources: Resources, clientapp: str) -> None:
        """Start the workers of resolved `resources`, which answer by `clientapp`, module:name."""
        super().__init__(run_config, resources.nodes, node_config(run_config))
        start_template(run_config)
        count = min(resources.workers, resources.nodes)
        self.workers = [
            Worker(clientapp, resources.cpus_per_worker(), visible_gpu(p, resources))
            for p in range(count)
        ]
        self.worker_of = {
            node: self.workers[p % count] for p, node in enumerate(self.get_node_ids())
        }
        self.replies: dict[str, Message] = {}

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies that are there, after a short wait if there is none."""
        asked = list(message_ids)
        self._hand_out()
        if not any(message_id in self.replies for message_id in asked):
            self._collect()
            self._hand_out()
        return [self.replies.pop(each) for each in asked if each in self.replies]

    def _hand_out(self) -> None:
        """Give workers that are free the next message for one of their nodes."""
        for message_id, message in list(self.waiting.items()):
            worker = self.worker_of[message.metadata.dst_node_id]
            if worker.question is None:
                del self.waiting[message_id]
                if not _expired(message):
                    worker.ask(message, self.contexts[message.metadata.dst_node_id])

    def _collect(self) -> None:
        """Keep the replies of all workers that are ready, of rounds that are not over."""
        busy = {worker.connection: worker for worker in self.workers if worker.question}
        for connection in wait(list(busy), _PATIENCE):
            question, reply, context = busy[connection].take()
            self.contexts[context.node_id] = context
            if not _expired(question):
                self.replies[question.metadata.message_id] = reply


class Worker:
    """One process, the messages to it, and the one that it has not answered yet."""

    def __init__(self, clientapp: str, threads: int, gpu: str | None) -> None:
        """Start it; `threads` are PyTorch's, `gpu` is the only one that it sees, if given."""
        self.task = (clientapp, threads, gpu)
        self.question: Message | None = None
        self._start()

    def _start(self) -> None:
        processes = worker_context()
        self.connection, theirs = processes.Pipe()
        self.process = processes.Process(target=_work, args=(theirs, *self.task), daemon=True)
        self.process.start()
        theirs.close()

    def ask(self, message: Message, context: Context) -> None:
        """Send a message with its node's context."""
        self.question, self._context = message, context
        with suppress(OSError):  # it has ended, which `take` sees
            self.connection.send((message, context))

    def take(self) -> tuple[Message, Message, Context]:
        """Return the question, its reply, and the node's context after it.

        A worker that ended has an error for a reply, and another process from then on.
        """
        question, self.question = self.question, None
        assert question is not None
        try:
            return question, *self.connection.recv()
        except (EOFError, OSError):
            self.process.join()
            reason = f"its worker process ended with exit code {self.process.exitcode}"
            self.connection.close()
            self._start()
            return question, Message(Error(2, reason), reply_to=question), self._context


def visible_gpu(worker: int, resources: Resources) -> str | None:
    """Return the one GPU that a worker may see, None if it does not matter."""
    names = gpu_names() if resources.gpus > 0 else []
    return names[worker * len(names) // resources.workers] if names else None


def _expired(message: Message) -> bool:
    return time.time() > message.metadata.created_at + message.metadata.ttl


def _work(connection: Connection, clientapp: str, threads: int, gpu: str | None) -> None:
    """Answer messages until the process that asks them ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is the other process that ends this one
    parent = multiprocessing.parent_process()
    assert parent is not None
    call_after(parent.join, lambda: os._exit(1))  # also in the middle of its work
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu  # CUDA has not started here
    import torch

    torch.set_num_threads(threads)
    identify()
    app = resolve_name(clientapp)
    while True:
        try:
            message, context = connection.recv()
            connection.send((answer(app, message, context), context))
        except (EOFError, OSError):
            return


def run_on_workers(
    server: ConfiguredServerApp, clientapp: str, resources: Resources, checking: "Future[None]"
) -> None:
    """Run the apps on worker processes of our own."""
    grid = WorkerGrid(server.run_config, resources, clientapp)
    checking.result()
    install_signal_handlers()  # the server notes that it was stopped
    server.main(grid, Context(1, 1, {}, RecordDict(), {}))
