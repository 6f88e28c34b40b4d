"""The base class of the project's strategies: rounds over clients, which nodes host.

It samples *clients*, sends one message to each node that hosts some of them, and reduces each reply
as it arrives. The report names each failed or missing client; too few usable replies end the run.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid

from strategies.aggregate import Arrays, UpdateRefused
from strategies.rounds.client_evaluation import read_scores, summarise_clients
from strategies.rounds.extras import Extras, pack_extras
from strategies.rounds.federation import Federation
from strategies.rounds.interruption import uninterrupted
from strategies.rounds.loop import RoundLoop
from strategies.rounds.records import (
    ARRAYS,
    LATE,
    LATE_REASON,
    TASK,
    ClientFailure,
    ClientResult,
    Packer,
    Task,
    failures_of,
    from_array_record,
    to_array_record,
    unpack_report,
    weight_of,
)
from strategies.rounds.report import NewestModel, RoundFailed, RoundReport, check_finite, fitted
from strategies.rounds.transport import array_bytes, payload_bytes, release

_ACCEPTED = "accepted-rounds"


class ClientStrategy(RoundLoop):
    """Runs the rounds; each method defines how it reduces the replies."""

    separate = False  # whether a node sends each client's model separately, not their sum
    summed = False  # whether a node with one client too sends its exact sum
    sums_only = False  # whether the server needs nothing but sums, so that masks can hide the rest
    continues_without_results = False  # whether the run continues after a round without results
    newest: NewestModel | None = None  # of this process; None before the end of its first round
    trains = False  # whether the server itself trains a module after each round
    keeps_models = False  # whether `state` has the clients' models, not the shared arrays

    def __init__(
        self,
        federation: Federation,
        cohort: Callable[[int], list[int]],
        lr: Callable[[int], float],
        trained: Sequence[str],
        weights: str = "size",
        min_replies: int = 1,
        tolerate_failures: bool = False,
        client_evaluation_every: int = 0,
        state_key: str = "",
        files: str = "",
    ) -> None:
        """Prepare a strategy.

        Args:
            federation: the clients, their nodes and their numbers of examples.
            cohort: round (from 1) -> ids of the clients to train.
            lr: round (from 1) -> learning rate of the local steps.
            trained: names of the shared arrays that clients train; the others are buffers.
            weights: "size" (by number of examples) or "uniform".
            min_replies: the least number of usable clients in a round.
            tolerate_failures: continue without clients that fail; diverged ones never count.
            client_evaluation_every: rounds between evaluations on clients' test splits; 0: none.
            state_key: the name of the clients' stored states; empty if they keep none.
            files: names and hashes of the user's files that every node must have in all rounds.
        """
        self.federation, self.cohort, self.lr = federation, cohort, lr
        self.trained = tuple(trained)
        self.weights = weights
        self.min_replies, self.tolerate_failures = max(1, min_replies), tolerate_failures
        self.client_evaluation_every = client_evaluation_every
        self.state_key, self.files = state_key, files
        self.server_round, self.last_round, self.report = 0, 0, RoundReport(0)
        self._tasks_sent: dict[int, Task] = {}
        self._evaluating: dict[int, Task] = {}
        self._global: Arrays = {}
        self.accepted: dict[int, int] = {}  # by client: its last accepted round

    # -- what a method may override -------------------------------------------------------------

    def begin_round(self, received: Arrays, total_weight: int, cohort: int) -> None:
        """Prepare for the replies of a cohort that starts from the shared arrays `received`."""

    def extras(self, clients: Sequence[int]) -> dict[str, Arrays]:
        """Return what the node of these clients gets for training beside the shared arrays."""
        return {}

    def evaluation_extras(self, clients: Sequence[int]) -> dict[str, Arrays]:
        """Return what the node of these clients gets for evaluation beside the model."""
        return {}

    def add_reply(
        self, content: RecordDict, task: Task, results: list[ClientResult]
    ) -> list[ClientResult]:
        """Reduce a node's reply and return the usable results; on an error nothing may be kept."""
        raise NotImplementedError

    def after_replies(self) -> None:
        """Act after all replies and before `end_round`, which a method may replace.

        Nothing of the strategy's state may change: an interruption here leaves the round out.
        """

    def end_round(self, received: Arrays) -> Arrays:
        """Return the next shared arrays, after all replies."""
        raise NotImplementedError

    def model_to_evaluate(self, arrays: Arrays) -> Arrays:
        """Return the model that the method's paper evaluates, given the current global one."""
        return arrays

    def state(self) -> Arrays:
        """Return the server's state between rounds, without the model."""
        return {}

    def load_state(self, state: Arrays) -> None:
        """Restore what `state` returned, when a run resumes."""
        if state:
            raise NotImplementedError(f"{type(self).__name__} has a state() and no load_state()")

    def round_metrics(self) -> dict[str, float]:
        """Return the method's numbers of the last round, by their names in metrics.jsonl."""
        return dict(self.report.metrics)

    # -- checkpoints ----------------------------------------------------------------------------

    def save(self) -> Arrays:
        """Return everything that a checkpoint needs beside the shared arrays."""
        accepted = np.array(sorted(self.accepted.items()), np.int64).reshape(-1, 2)
        return {**self.state(), _ACCEPTED: accepted}

    def restore(self, saved: Arrays) -> None:
        """Restore what `save` returned."""
        self.accepted = dict(saved[_ACCEPTED].tolist())
        self.load_state({name: array for name, array in saved.items() if name != _ACCEPTED})

    # -- Flower's interface ---------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Return one message per node that hosts clients of this round's cohort."""
        self.server_round, self.report = server_round, RoundReport(server_round)
        self._note_connected(grid)
        cohort = self.cohort(server_round)
        total = sum(weight_of(self.weights, self.federation.examples[c]) for c in cohort)
        self._global = from_array_record(arrays)
        self.begin_round(self._global, total, len(cohort))
        self._tasks_sent = self._tasks(cohort, total)
        messages = self._messages(MessageType.TRAIN, self._tasks_sent, arrays, self.extras)
        self.report.asked = len(cohort)
        self.report.bytes_down = sum(map(payload_bytes, messages))
        per_client = sum(array_bytes(*self.extras([client]).values()) for client in cohort)
        self.report.client_bytes_down = len(cohort) * array_bytes(self._global) + per_client
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Reduce the replies as they arrive; raises `RoundFailed` if they give no model."""
        waiting = dict(self._tasks_sent)
        for reply in self.report.timed(replies):
            task = waiting.pop(reply.metadata.src_node_id, None)
            if task is not None:
                self._use(reply, task, self._receive, self.report.failures)
            release(reply)
        for task in waiting.values():
            self.report.failures += failures_of(task.clients, LATE_REASON, LATE)
        self.report.sort(self.federation.place)
        self.federation.learn_pace(self.report.results)
        self.report.check(self.min_replies, self.tolerate_failures, self.continues_without_results)
        self.after_replies()  # may wait for nodes, so it can be interrupted
        with uninterrupted():
            self.newest = NewestModel(server_round, to_array_record(self._next_arrays()))
            self.report.training_ends()
        return self.newest.arrays, MetricRecord({"train_loss": self.report.train_loss})

    def _next_arrays(self) -> Arrays:
        """Return the next shared arrays; a round that gives none leaves the state as it was."""
        before = self.save()
        self.accepted |= {each.client: self.server_round for each in self.report.results}
        try:
            arrays = self.end_round(self._global)
            arrays = fitted(arrays, self._global, self.server_round)
            check_finite(arrays, self.server_round)
        except RoundFailed:
            self.restore(before)
            raise
        return arrays

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Return the evaluation messages to all nodes, in rounds where this is due."""
        every = self.client_evaluation_every
        if not every or (server_round % every and server_round != self.last_round):
            return []
        self._note_connected(grid)
        arrays = to_array_record(self.model_to_evaluate(from_array_record(arrays)))
        self._evaluating = tasks = self._tasks(sorted(self.federation.node_of), 1)
        messages = self._messages(MessageType.EVALUATE, tasks, arrays, self.evaluation_extras)
        self.report.eval_bytes_down = sum(map(payload_bytes, messages))
        return messages

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return mean and spread of the clients' accuracies, or None if there are none.

        `evaluation_failures` and `unevaluated` name each client that should have one and has none.
        """
        waiting, self._evaluating, rows = self._evaluating, {}, {}
        expected = {client for task in waiting.values() for client in task.clients}

        def read(reply: Message, task: Task) -> None:
            self.report.eval_bytes_up += payload_bytes(reply)
            scores, failures = read_scores(reply.content, task.clients)
            rows.update(scores)
            self.report.evaluation_failures += failures

        for reply in replies:
            task = waiting.pop(reply.metadata.src_node_id, None)
            if task is not None:
                self._use(reply, task, read, self.report.evaluation_failures)
        for task in waiting.values():
            self.report.evaluation_failures += failures_of(task.clients, LATE_REASON, LATE)
        self.report.sort(self.federation.place)
        self.report.scores, self.report.unevaluated = rows, sorted(expected - rows.keys())
        summary = summarise_clients(rows, self.federation.training_clients)
        return MetricRecord(summary) if summary else None

    def summary(self) -> None:
        """Print nothing, because the ServerApp prints the configuration itself."""

    # -- messages and replies -------------------------------------------------------------------

    def _note_connected(self, grid: Grid) -> None:
        """Let only the nodes of a pool that are connected now get clients."""
        if self.federation.pool:
            self.federation.set_connected(grid.get_node_ids())

    def _tasks(self, clients: list[int], total_weight: int) -> dict[int, Task]:
        """Return each node's task for the clients that it hosts."""
        return {
            node: Task(
                server_round=self.server_round, clients=tuple(hosted),
                lr=self.lr(self.server_round), weights=self.weights,
                total_weight=total_weight, cohort=len(clients), state_key=self.state_key,
                accepted=tuple(self.accepted.get(c, 0) for c in hosted if self.state_key),
                separate=self.separate, summed=self.summed, files=self.files,
            )
            for node, hosted in self.federation.by_node(clients).items()
        }  # fmt: skip

    def _messages(
        self, kind: str, tasks: Mapping[int, Task], arrays: ArrayRecord, extras: Extras
    ) -> list[Message]:
        messages, packer = [], Packer()
        for node, task in tasks.items():
            groups = pack_extras(extras(task.clients), packer)
            content = RecordDict({ARRAYS: arrays, TASK: task.to_record(), **groups})
            messages.append(Message(content, dst_node_id=node, message_type=kind))
        return messages

    def _use(
        self, reply: Message, task: Task, use: Callable[[Message, Task], None],
        failures: list[ClientFailure],
    ) -> None:  # fmt: skip
        """Pass a node's reply to `use`; any error is added to `failures` for the node's clients.

        Nodes are not trusted: no reply may end a run that tolerates failures.
        """
        if reply.has_error():
            failures += failures_of(task.clients, f"its node reported: {reply.error.reason}")
            return
        try:
            use(reply, task)
        except Exception as error:
            reason = str(error) if isinstance(error, UpdateRefused) else repr(error)
            failures += failures_of(task.clients, f"what its node sent was refused: {reason}")

    def _receive(self, reply: Message, task: Task) -> None:
        """Reduce one node's update."""
        self.report.bytes_up += payload_bytes(reply)
        results, failures = unpack_report(reply.content)
        self.federation.check(results, failures, task.clients)
        if results or (self.summed and ARRAYS in reply.content):  # at least a share of the noise
            self.report.results += self.add_reply(reply.content, task, results)
        self.report.failures += failures
