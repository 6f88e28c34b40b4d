"""A simulation whose nodes are worker processes of this machine, without Ray.

It uses the real ServerApp, messages and ClientApp, as `in_process.py` does, but each worker trains
in its own process. The workers are forked from one process (`worker_template.py`), and share the
memory of its imports.
"""

import multiprocessing
import os
import signal
from collections.abc import Iterable, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pkgutil import resolve_name
from typing import Any

from flwr.app import Context, Message, RecordDict

from fedapp.core.hardware import gpu_names
from fedapp.engines.apps import ConfiguredServerApp
from fedapp.engines.local_grid import LocalGrid, answer, failed, set_task_ids
from fedapp.engines.resources import Resources, node_config
from fedapp.engines.subprocesses import call_after, install_signal_handlers
from fedapp.engines.worker_template import worker_context
from strategies.rounds.transport import AT_ONCE

_PATIENCE = 1.0  # seconds that one poll for replies may take


class WorkerGrid(LocalGrid):
    """Nodes whose messages worker processes answer; node p is on worker p mod workers."""

    def __init__(self, run_config: Mapping[str, Any], resources: Resources, clientapp: str) -> None:
        """Start the workers of resolved `resources`, which answer by `clientapp`, module:name."""
        super().__init__(run_config, resources.nodes, node_config(run_config))
        count = min(resources.workers, resources.nodes)
        self.workers = [
            Worker(clientapp, resources.cpus_per_worker(), visible_gpu(p, count, resources))
            for p in range(count)
        ]
        self.worker_of = {
            node: self.workers[p % count] for p, node in enumerate(self.get_node_ids())
        }
        self.replies: dict[str, Message] = {}  # by the id of the message

    def drop_expired(self) -> None:
        """Drop the messages and replies for which nobody waits any more."""
        super().drop_expired()
        self.replies = {i: reply for i, reply in self.replies.items() if i in self.awaited}

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the available replies, after a short wait if there is none."""
        requested = list(message_ids)
        self._dispatch()
        if not any(message_id in self.replies for message_id in requested):
            self._collect()
            self._dispatch()
        found = [each for each in requested if each in self.replies]
        for each in found:
            self.awaited.pop(each, None)
        return [self.replies.pop(each) for each in found]

    def _dispatch(self) -> None:
        """Send each free worker the next message for one of its nodes."""
        self.drop_expired()
        for message_id, message in list(self.waiting.items()):
            worker = self.worker_of[message.metadata.dst_node_id]
            if worker.question is None:
                del self.waiting[message_id]
                worker.ask(message, self.contexts[message.metadata.dst_node_id])

    def _collect(self) -> None:
        """Store the replies of ready workers, except those that nobody waits for.

        Some replies at a time: each may be as large as a model, and the others wait in their
        workers.
        """
        busy = {worker.connection: worker for worker in self.workers if worker.question}
        room = max(1, AT_ONCE - len(self.replies))
        for connection in wait(list(busy), _PATIENCE)[:room]:
            question, reply, context = busy[connection].take_answer()
            self.contexts[context.node_id] = context
            if question.metadata.message_id in self.awaited:
                self.replies[question.metadata.message_id] = reply


class Worker:
    """One worker process, its connection, and the message that it has not answered yet."""

    def __init__(self, clientapp: str, threads: int, gpu: str | None) -> None:
        """Start the process; `threads` are PyTorch's, `gpu` is the only visible GPU, if given."""
        self.task = (clientapp, threads, gpu)
        self.question: Message | None = None
        self._start()

    def _start(self) -> None:
        processes = worker_context()
        self.connection, child_end = processes.Pipe()
        self.process = processes.Process(target=_work, args=(child_end, *self.task), daemon=True)
        self.process.start()
        child_end.close()

    def ask(self, message: Message, context: Context) -> None:
        """Send a message with its node's context."""
        self.question, self._context = message, context
        with suppress(OSError):  # it has ended; `take_answer` handles that
            self.connection.send((message, context))

    def take_answer(self) -> tuple[Message, Message, Context]:
        """Return the message, its reply, and the node's context afterwards.

        If the process has ended, the reply is an error, and a new process replaces it.
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
            return question, Message(failed(reason), reply_to=question), self._context


def visible_gpu(worker: int, workers: int, resources: Resources) -> str | None:
    """Return the only GPU that one of `workers` may see; None for no restriction."""
    names = gpu_names() if resources.gpus > 0 else []
    return names[worker * len(names) // workers] if names else None


def _work(connection: Connection, clientapp: str, threads: int, gpu: str | None) -> None:
    """Answer messages until the parent process ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process ends this one
    parent = multiprocessing.parent_process()
    assert parent is not None
    call_after(parent.join, lambda: os._exit(1))  # also during a task
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu  # CUDA is not initialised yet
    import torch

    torch.set_num_threads(threads)
    set_task_ids()
    app = resolve_name(clientapp)
    while True:
        try:
            message, context = connection.recv()
            connection.send((answer(app, message, context), context))
        except (EOFError, OSError):
            return


def run_on_workers(server: ConfiguredServerApp, clientapp: str, resources: Resources) -> None:
    """Run the apps on the app's worker processes."""
    grid = WorkerGrid(server.run_config, resources, clientapp)
    install_signal_handlers()  # an interruption then reaches the server
    server.main(grid, Context(1, 1, {}, RecordDict(), {}))
