"""The handlers of a node's messages: training and evaluation of the clients that it hosts.

A real SuperNode hosts one client, a virtual one may host many: node p of P hosts the clients c with
c mod P = p. The handlers build the NumPyClient of each client that a message names, call it, and
pack its results in named records. Simulations and real hosts use the same handlers.
"""

import traceback
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
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


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the clients that the task names; reply with their models or exact partial sums."""
    ledger = Ledger.of(context.node_config)
    process, task, received, extras = _unpack(message, context, ledger)
    check = partial(_check_train, message, context, process, task, ledger)
    if refused := _refused(message, task, check):
        return refused
    privacy = privacy_of(process.config, task, ledger is not None)
    node_reply = NodeReply(received, task, privacy, process.codec, process.config.seed)
    for client in task.clients:
        try:
            memory = _memory(process, task, client, task.server_round, context)
            with memory.state.locked() if memory else nullcontext():
                numpy_client = process.client(client, memory, extras, task.server_round)
                update = _trained(process, task, numpy_client, _ordered(received, numpy_client))
                node_reply.add_update(numpy_client, update)
        except Exception as error:
            examples = len(process.data.partition.train[client])
            node_reply.add_failure(_failure(client, error), examples)
    try:
        content = node_reply.content(_hide(message, context, process, privacy, ledger))
    except (ProtocolBroken, UpdateRefused) as reason:
        sentence = f"secure aggregation was refused: {reason}"
        content = pack_report([], failures_of(task.clients, sentence))
    except UserError as reason:
        content = pack_report([], failures_of(task.clients, str(reason)))
    return Message(content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate the received model, personalised by each client of the task, on its test split."""
    ledger = Ledger.of(context.node_config)
    process, task, received, extras = _unpack(message, context, ledger)
    if refused := _refused(message, task, partial(_check_evaluate, process, task, ledger)):
        return refused
    rows: list[dict[str, Any]] = []
    failures: list[ClientFailure] = []
    config: dict[str, Scalar] = {"server_round": task.server_round, "lr": task.lr}
    for client in task.clients:
        try:
            memory = _memory(process, task, client, task.server_round + 1, context)
            numpy_client = process.client(client, memory, extras, task.server_round)
            loss, count, scores = numpy_client.evaluate(
                list(_ordered(received, numpy_client).values()), config
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


def _trained(process: ProcessContext, task: Task, client: LocalClient, received: Arrays) -> Update:
    """Return the update of a client, which may be slow or malicious."""
    slow_down(process.config, client, task.server_round)
    update = client.work(received, task.server_round, task.lr)
    attack(process.config, process.attackers, client, received, update, task.server_round)
    return update


def _hide(
    message: Message,
    context: Context,
    process: ProcessContext,
    privacy: Privacy,
    ledger: Ledger | None,
) -> Callable[[GroupSums], None] | None:
    """Return what hides a node's sums in place, or None in a run without secure aggregation.

    Masks hide them from the server. Noise hides single clients in the opened sum.
    """
    if SECURE not in message.content:
        return None
    node, asked = secure_node(context), message.content.config_records[SECURE]
    inputs = inputs_of(message.content, process.config.full_fingerprint())

    def hide(sums: GroupSums) -> None:
        if privacy.deviation:
            add_noise(sums.model, privacy.deviation, node.fewest(asked))
        groups = {name: group.sums for name, group in sums.groups.items()}
        terms = terms_of(sums, privacy.clip, privacy.deviation)
        node.mask({ARRAYS: sums.model.sums, **groups}, asked, terms, inputs)
        if ledger:
            ledger.charge(privacy.noise)

    return hide


def _unpack(
    message: Message, context: Context, ledger: Ledger | None
) -> tuple[ProcessContext, Task, Arrays, dict[str, Arrays]]:
    """Return this process's context, and the message's task, shared arrays and named extras."""
    with unsaid(ledger), full_memory_explained():
        process = open_process(context.run_config, context.node_config)
    return (
        process,
        Task.from_record(message.content.config_records[TASK]),
        from_array_record(message.content.array_records[ARRAYS]),
        extra_records(message.content),
    )


def _memory(
    process: ProcessContext, task: Task, client: int, server_round: int, context: Context
) -> Memory | None:
    """Return a client's state as of the start of `server_round`; None if it keeps nothing."""
    state_dir = str(context.node_config.get("state-dir", ""))
    accepted = task.accepted_round(client)
    return process.memory(client, task.state_key, server_round, accepted, state_dir)


def _refused(message: Message, task: Task, check: Callable[[], None]) -> Message | None:
    """Return the reply to a task for which `check` raises UserError; else None."""
    try:
        check()
    except UserError as reason:
        failures = failures_of(task.clients, str(reason))
        return Message(pack_report([], failures), reply_to=message)
    return None


def _check_train(
    message: Message, context: Context, process: ProcessContext, task: Task, ledger: Ledger | None
) -> None:
    """Raise UserError if this node must not train."""
    masked = SECURE in message.content and task.summed and not task.separate
    _check_once(process, task)
    _check_unchanged(process, task)
    check_masked(context.node_config, masked)
    check_training(ledger, process, masked)
    if ledger and list(task.clients) != [int(context.node_config["partition-id"])]:
        raise UserError("the server asks for other clients than the one of this node")
    if ledger and not ledger.rounds_left(float(process.config.dp_noise), 1):
        raise UserError(ledger.exhausted(float(process.config.dp_noise)))


def _check_evaluate(process: ProcessContext, task: Task, ledger: Ledger | None) -> None:
    """Raise UserError if this node must not evaluate."""
    _check_unchanged(process, task)
    check_evaluation(ledger)


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
