"""What a node answers without training: who it is, and numbers of its clients' data.

The server asks these queries before, during and after a run.
"""

from contextlib import suppress
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from clients.class_statistics import feature_statistics
from clients.fedgen import COUNTS
from clients.state.listing import UnknownRun, clean
from clients.state.store import StateError
from clients.training.arrays import load_arrays
from fedapp.core.errors import UserError, full_memory_explained
from fedapp.core.extension_files import own_mistakes_explained
from fedapp.core.paths import state_folder
from fedapp.runtime.node.identity import describe
from fedapp.runtime.node.secure import check_masked
from fedapp.runtime.process.context import config_of, open_process
from strategies.aggregate import Arrays
from strategies.rounds.records import ARRAYS, TASK, UPLOADS, from_array_record, pack_uploads
from strategies.secure.messages import SECURE


def answer_queries(app: ClientApp) -> None:
    """Let an app answer the queries of this module."""
    app.query()(identity)
    app.query("labels")(labels)
    app.query("statistics")(statistics)
    app.query("forget")(forget)


def identity(message: Message, context: Context) -> Message:
    """Reply with the node's identity: partition, clients and their examples, versions, device."""
    try:
        with own_mistakes_explained(), full_memory_explained():
            answer = describe(context)
    except UserError as mistake:
        answer = {"error": str(mistake)}
    return Message(RecordDict({"identity": ConfigRecord(answer)}), reply_to=message)


def labels(message: Message, context: Context) -> Message:
    """Reply with the number of training images per class of each client that the message names.

    A node that sends masked sums only does not.
    """
    check_masked(context.node_config, False)
    process = open_process(context.run_config, context.node_config)
    clients: Any = message.content.config_records[TASK]["clients"]
    counts = {client: process.data.client(client).all_counts.cpu().numpy() for client in clients}
    uploads = pack_uploads({client: {COUNTS: counts[client]} for client in clients})
    return Message(RecordDict({UPLOADS: uploads}), reply_to=message)


def statistics(message: Message, context: Context) -> Message:
    """Reply with the statistics of the features of each client that the message names, by class.

    The features are those by the received model. A node that sends masked sums only does not.
    """
    try:
        with own_mistakes_explained(), full_memory_explained():
            uploads = _statistics(message, context)
    except UserError as mistake:
        refusal = ConfigRecord({"error": str(mistake)})
        return Message(RecordDict({TASK: refusal}), reply_to=message)
    return Message(RecordDict({UPLOADS: pack_uploads(uploads)}), reply_to=message)


def _statistics(message: Message, context: Context) -> dict[int, Arrays]:
    """Return the statistics of each client; raises UserError if this node must not send them."""
    check_masked(context.node_config, False)
    process = open_process(context.run_config, context.node_config)
    if not process.config.class_statistics:
        raise UserError("the server asks for class statistics, and the run is without them")
    received = from_array_record(message.content.array_records[ARRAYS])
    load_arrays(process.slot.shared, received)
    clients: Any = message.content.config_records[TASK]["clients"]
    images = process.data.own_images
    return {client: feature_statistics(process.model, images(client)) for client in clients}


def forget(message: Message, context: Context) -> Message:
    """Remove secrets and the states of this node's clients after a run, or reply with the error."""
    context.state.pop(SECURE, None)
    key = str(message.content.config_records[TASK].get("state_key", ""))
    state_dir = context.node_config.get("state-dir") or config_of(context.run_config).state_dir
    root = state_folder(str(state_dir))
    outcome: dict[str, Any] = {}
    try:
        with suppress(UnknownRun):  # another node of this machine has removed them already
            if key:
                clean(root, key)
    except StateError as error:
        outcome = {"error": str(error)}
    return Message(RecordDict({"forgotten": ConfigRecord(outcome)}), reply_to=message)
