"""The handlers of a node's messages: training and evaluation of the clients that it hosts.

A real SuperNode hosts one client, a virtual one may host many: node p of P hosts the clients c with
c mod P = p. The handlers build the NumPyClient of each client that a message names, call it, and
pack its results in named records. Simulations and real hosts use the same handlers.
"""

import traceback
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from flwr.app import Context, Message, MetricRecord
from flwr.clientapp import ClientApp

from clients.base import LocalClient, Scalar
from clients.state.memory import Memory
from clients.state.store import StateError
from clients.training.local_training import LossDiverged
from clients.training.objective import NotScalarError
from clients.update import Update
from fedapp.core.errors import UserError, full_memory_explained, out_of_memory
from fedapp.core.extension_files import own_mistake
from fedapp.runtime.node.ledger import Ledger, check_evaluation, check_training, unsaid
from fedapp.runtime.node.queries import answer_queries
from fedapp.runtime.node.reply import NodeReply, Privacy, privacy_of
from fedapp.runtime.node.secure import answer_steps, check_masked, secure_node
from fedapp.runtime.process.client_roles import attack, slow_down
from fedapp.runtime.process.context import ProcessContext, open_process
from strategies.aggregate import Arrays, GroupSums, UpdateRefused, WrongForm
from strategies.rounds.client_evaluation import REINITIALISED
from strategies.rounds.private import add_noise
from strategies.rounds.records import (
    ARRAYS,
    DIVERGED,
    ERROR,
    REPORT,
    TASK,
    ClientFailure,
    Task,
    extra_records,
    failures_of,
    from_array_record,
    pack_report,
)
from strategies.secure.inputs import inputs_of
from strategies.secure.messages import SECURE
from strategies.secure.primitives import ProtocolBroken
from strategies.secure.signatures import terms_of

app = ClientApp()
answer_steps(app)
answer_queries(app)


@dataclass(frozen=True)
class _Work:
    """What a message asks of this node, and what the node does it with."""

    message: Message
    context: Context
    ledger: Ledger | None
    process: ProcessContext
    task: Task
    received: Arrays  # the shared ones
    extras: Mapping[str, Arrays]

    @classmethod
    def of(cls, message: Message, context: Context) -> "_Work":
        """Read a message and open the process for its run."""
        ledger, content = Ledger.of(context.node_config), message.content
        with unsaid(ledger), full_memory_explained():
            process = open_process(context.run_config, context.node_config)
        return cls(
            message, context, ledger, process,
            Task.from_record(content.config_records[TASK]),
            from_array_record(content.array_records[ARRAYS]),
            extra_records(content),
        )  # fmt: skip

    def check_train(self) -> None:
        """Raise UserError if this node must not train."""
        masked = SECURE in self.message.content and self.task.summed and not self.task.separate
        _check_once(self.process, self.task)
        _check_unchanged(self.process, self.task)
        check_masked(self.context.node_config, masked)
        check_training(self.ledger, self.process, masked)
        if not (ledger := self.ledger):
            return
        if list(self.task.clients) != [int(self.context.node_config["partition-id"])]:
            raise UserError("the server asks for other clients than the one of this node")
        if not ledger.rounds_left(float(self.process.config.dp_noise), 1):
            raise UserError(ledger.exhausted(float(self.process.config.dp_noise)))

    def check_evaluate(self) -> None:
        """Raise UserError if this node must not evaluate."""
        _check_unchanged(self.process, self.task)
        check_evaluation(self.ledger)

    def memory(self, client: int, server_round: int) -> Memory | None:
        """Return a client's state as of the start of `server_round`; None if it keeps nothing."""
        state_dir = str(self.context.node_config.get("state-dir", ""))
        accepted = self.task.accepted_round(client)
        return self.process.memory(client, self.task.state_key, server_round, accepted, state_dir)

    def trained(self, client: LocalClient) -> Update:
        """Return the update of a client, which may be slow or malicious."""
        process, server_round = self.process, self.task.server_round
        received = _ordered(self.received, client)
        slow_down(process.config, client, server_round)
        update = client.work(received, server_round, self.task.lr)
        attack(process.config, process.attackers, client, received, update, server_round)
        return update

    def hiding(self, privacy: Privacy) -> Callable[[GroupSums], None] | None:
        """Return what hides the node's sums in place, or None without secure aggregation.

        Masks hide them from the server. Noise hides single clients in the opened sum.
        """
        content = self.message.content
        if SECURE not in content:
            return None
        node, asked = secure_node(self.context), content.config_records[SECURE]
        inputs = inputs_of(content, self.process.config.full_fingerprint())

        def hide(sums: GroupSums) -> None:
            if privacy.deviation:
                add_noise(sums.model, privacy.deviation, node.fewest(asked))
            groups = {name: group.sums for name, group in sums.groups.items()}
            terms = terms_of(sums, privacy.clip, privacy.deviation)
            node.mask({ARRAYS: sums.model.sums, **groups}, asked, terms, inputs)
            if self.ledger:
                self.ledger.charge(privacy.noise)

        return hide


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the clients that the task names; reply with their models or exact partial sums."""
    work = _Work.of(message, context)
    if refused := _refused(work, work.check_train):
        return refused
    process, task = work.process, work.task
    privacy = privacy_of(process.config, task, work.ledger is not None)
    node_reply = NodeReply(work.received, task, privacy, process.codec, process.config.seed)
    for client in task.clients:
        try:
            memory = work.memory(client, task.server_round)
            with memory.state.locked() if memory else nullcontext():
                numpy_client = process.client(client, memory, work.extras, task.server_round)
                node_reply.add_update(numpy_client, work.trained(numpy_client))
        except Exception as error:
            examples = len(process.data.partition.train[client])
            node_reply.add_failure(_failure(client, error), examples)
    try:
        content = node_reply.content(work.hiding(privacy))
    except (ProtocolBroken, UpdateRefused) as reason:
        sentence = f"secure aggregation was refused: {reason}"
        content = pack_report([], failures_of(task.clients, sentence))
    except UserError as reason:
        content = pack_report([], failures_of(task.clients, str(reason)))
    return Message(content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate the received model, personalised by each client of the task, on its test split."""
    work = _Work.of(message, context)
    if refused := _refused(work, work.check_evaluate):
        return refused
    task, rows, failures = work.task, list[dict[str, Any]](), list[ClientFailure]()
    config: dict[str, Scalar] = {"server_round": task.server_round, "lr": task.lr}
    for client in task.clients:
        try:
            memory = work.memory(client, task.server_round + 1)
            numpy_client = work.process.client(client, memory, work.extras, task.server_round)
            loss, count, scores = numpy_client.evaluate(
                list(_ordered(work.received, numpy_client).values()), config
            )
            scores[REINITIALISED] = int(numpy_client.evaluated_without_state)
        except Exception as error:
            failures.append(_failure(client, error))
        else:
            rows.append({"client": client, "examples": count, "loss": loss, **scores})
    content = pack_report([], failures)
    if rows:
        common = [name for name in rows[0] if all(name in row for row in rows)]
        content[REPORT] = MetricRecord({name: [row[name] for row in rows] for name in common})
    return Message(content, reply_to=message)


def _refused(work: _Work, check: Callable[[], None]) -> Message | None:
    """Return the reply to a message for which `check` raises UserError; else None."""
    try:
        check()
    except UserError as reason:
        failures = failures_of(work.task.clients, str(reason))
        return Message(pack_report([], failures), reply_to=work.message)
    return None


def _check_once(process: ProcessContext, task: Task) -> None:
    """Raise UserError if updates are clipped, and a client would count more than once."""
    once = task.weights == "uniform" and len(set(task.clients)) == len(task.clients)
    if process.config.dp_clip and not once:
        raise UserError(
            "the server asks for a sum in which a client counts more than dp-clip allows"
        )


def _check_unchanged(process: ProcessContext, task: Task) -> None:
    """Raise UserError if the run's files have changed."""
    if process.files_text != task.files:
        raise UserError(
            f"its node has the files '{process.files_text}', but the run began with "
            f"'{task.files}': restore the file there, and resume the run"
        )


def _ordered(received: Arrays, client: LocalClient) -> Arrays:
    """Return the received arrays in the client's order; raises UserError if names differ."""
    if received.keys() != client.shared.keys():
        raise UserError(f"the server sent {sorted(received)}, not {sorted(client.shared)}")
    return {name: received[name] for name in client.shared}


def _failure(client: int, error: Exception) -> ClientFailure:
    """Return why a client has no result: its numbers have diverged, or an error."""
    if isinstance(error, WrongForm):
        sentence = f"its update is not of the form that the server expects: {error}"
        return ClientFailure(client, ERROR, sentence)
    if isinstance(error, LossDiverged | UpdateRefused):
        return ClientFailure(client, DIVERGED, str(error))
    return ClientFailure(client, ERROR, _explain(error))


def _explain(error: Exception) -> str:
    """Return the sentence of a user's mistake, or the traceback of any other error."""
    if isinstance(error, UserError | StateError | NotScalarError):
        return str(error)
    return out_of_memory(error) or own_mistake(error) or traceback.format_exc()
