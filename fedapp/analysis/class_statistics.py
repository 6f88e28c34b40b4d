"""The file class_statistics.safetensors: with it `fedapp calibrate` needs no data of clients.

At the end of a run with `class-statistics` the server asks every client for number, mean and
scatter of the features of each of its classes by the final model, and merges them to this file.
"""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from safetensors import SafetensorError
from safetensors.torch import load_file

from clients.class_statistics import COUNTS, LABELS, MEANS, SCATTERS
from clients.training.arrays import to_arrays
from fedapp.analysis.formulas.gaussians import ClassGaussians
from fedapp.config.run_config import RunConfig
from fedapp.core.errors import UserError
from fedapp.core.files import safetensors_bytes, write_atomically
from fedapp.core.progress import tracked
from fedapp.results.final_model import check_made_from, made_from, not_its_model, statistics_file
from fedapp.results.folders import writing
from fedapp.results.run_directory import RunDirectory
from fedapp.runtime.callbacks.base import ActiveRun, Callback
from strategies.aggregate import Arrays
from strategies.rounds.federation import Federation
from strategies.rounds.records import (
    ARRAYS,
    LATE_REASON,
    TASK,
    UPLOADS,
    shortened,
    to_array_record,
    unpack_uploads,
)
from strategies.rounds.report import LARGEST_REPORTED
from strategies.rounds.transport import exchange, release

log = logging.getLogger(__name__)
_MOST_BYTES = 1 << 31  # of the statistics that the server holds at a time, beside the merged ones
_MOST_CLIENTS = 32
_REPEAT = (
    "The model is complete and saved. To ask again, resume the run, which without a checkpoint "
    "trains again; tolerate-failures=true does without such clients"
)


class Statistics(Callback):
    """Asks the clients of a completed run, after its model is saved."""

    def __init__(self, grid: Grid) -> None:
        """Take the grid whose nodes are asked."""
        self.grid = grid

    def run_ends(self, run: ActiveRun, summary: dict[str, Any]) -> None:
        """Write the file; without it the run has failed."""
        if summary["status"] == "completed":
            _gather(self.grid, run)


def _gather(grid: Grid, run: ActiveRun) -> None:
    """Ask all clients for their statistics by the final model, and write the merged ones.

    The clients are merged in the order of their ids, so that the file is the same for any nodes.

    Raises:
        UserError: the statistics of a client are missing or invalid and failures are not tolerated,
            there are none, or the file cannot be written.
    """
    started, config, process = time.monotonic(), run.config, run.process
    federation = run.strategy.federation
    run.load_evaluated()
    model = to_array_record(to_arrays(process.slot.shared))
    merged = ClassGaussians(*process.model.get_parameter("head.weight").shape)
    problems: dict[int, str] = {}
    for clients in tracked(
        _groups(list(range(federation.training_clients)), merged), "statistics of clients"
    ):
        answers = _answers(grid, federation, clients, model, config.round_timeout)
        for client in clients:
            try:
                merged.add(_checked(answers[client], merged, federation.examples[client]))
            except _UnusableError as reason:
                problems[client] = str(reason)
    _report(problems, config, federation)
    _save(merged, run.directory)
    text = "class statistics of %d clients: %.1f s; `fedapp calibrate %s` retrains the head"
    count = config.training_clients - len(problems)
    log.info(text, count, time.monotonic() - started, run.directory.path)


def load(run: RunDirectory, num_classes: int, width: int) -> ClassGaussians | None:
    """Return the merged statistics of a run's clients, if it has the file.

    Raises:
        UserError: the file is damaged, or was made from an earlier model of this run.
    """
    file = statistics_file(run)
    if not file.is_file():
        return None
    check_made_from(file, run, "resume the run with class-statistics=true, or remove the file")
    merged = ClassGaussians(num_classes, width)
    own = _tensors(merged)
    try:
        saved = load_file(file)
        if {n: (t.shape, t.dtype) for n, t in saved.items()} != {
            n: (t.shape, t.dtype) for n, t in own.items()
        }:
            raise ValueError("other tensors")
    except (SafetensorError, ValueError) as error:
        raise not_its_model(file, error) from None
    for name, tensor in own.items():
        tensor.copy_(saved[name])
    return merged


def _save(merged: ClassGaussians, run: RunDirectory) -> None:
    with writing(run.path):
        content = safetensors_bytes(_tensors(merged), made_from(run))
        write_atomically(statistics_file(run), content)


def _tensors(merged: ClassGaussians) -> dict[str, torch.Tensor]:
    return {COUNTS: merged.counts, MEANS: merged.means, SCATTERS: merged.scatters}


def _groups(clients: Sequence[int], merged: ClassGaussians) -> Iterator[Sequence[int]]:
    """Yield the clients in groups whose statistics are in memory together."""
    size = min(_MOST_CLIENTS, max(1, _MOST_BYTES // merged.scatters.nbytes))
    return (clients[first : first + size] for first in range(0, len(clients), size))


class _UnusableError(Exception):
    """A client has no statistics, for this reason."""


def _answers(
    grid: Grid, federation: Federation, clients: Sequence[int], model: ArrayRecord, timeout: float
) -> dict[int, Arrays | _UnusableError]:
    """Return for each client what its node sent, or why there is nothing.

    Nodes are not trusted: nothing that they send raises an error here.
    """
    federation.set_connected(grid.get_node_ids())
    by_node = federation.by_node(list(clients))
    messages = [
        Message(
            RecordDict({ARRAYS: model, TASK: ConfigRecord({"clients": hosted})}),
            dst_node_id=node,
            message_type="query.statistics",
        )
        for node, hosted in by_node.items()
    ]
    answers: dict[int, Arrays | _UnusableError] = dict.fromkeys(
        clients, _UnusableError(LATE_REASON)
    )
    for reply in exchange(grid, messages, timeout):
        hosted = by_node[reply.metadata.src_node_id]
        try:
            answers |= _unpacked(reply, hosted)
        except Exception as error:
            answers |= dict.fromkeys(hosted, _UnusableError(shortened(str(error))))
        release(reply)
    return answers


def _unpacked(reply: Message, hosted: Sequence[int]) -> dict[int, Arrays]:
    """Return the uploads of a node's clients.

    Raises `_UnusableError` if the node reports an error or answers for others, and any other
    exception if the reply is malformed.
    """
    if reply.has_error():
        raise _UnusableError(f"its node reported: {(reply.error.reason or '').strip()}")
    if TASK in reply.content:
        raise _UnusableError(f"its node reported: {reply.content.config_records[TASK]['error']!s}")
    uploads = unpack_uploads(reply.content.array_records[UPLOADS])
    if sorted(uploads) != sorted(hosted):
        raise _UnusableError(f"its node sent statistics of the clients {sorted(uploads)}")
    return uploads


def _checked(answer: Arrays | _UnusableError, merged: ClassGaussians, examples: int) -> Arrays:
    """Return a client's statistics; raises `_UnusableError` unless features may have them."""
    if isinstance(answer, _UnusableError):
        raise answer
    if fault := _fault(answer, merged, examples):
        raise _UnusableError(f"what it sent was refused: {fault}")
    return answer


def _fault(arrays: Arrays, merged: ClassGaussians, examples: int) -> str:
    """Return what is wrong with statistics of so many images; empty: nothing."""
    (classes, width), count = merged.means.shape, np.size(arrays.get(LABELS, ()))
    form = {
        LABELS: ((count,), "int64"),
        COUNTS: ((count,), "int64"),
        MEANS: ((count, width), "float64"),
        SCATTERS: ((count, width, width), "float64"),
    }
    if {name: (array.shape, str(array.dtype)) for name, array in arrays.items()} != form:
        return "not the arrays of such statistics"
    labels, counts = arrays[LABELS], arrays[COUNTS]
    if not (np.diff(labels) > 0).all() or (labels < 0).any() or (labels >= classes).any():
        return "its labels are not those of classes in ascending order"
    if not ((counts >= 1) & (counts <= examples)).all() or counts.sum() != examples:
        return f"its numbers of images are not those of {examples} images"
    for name in (MEANS, SCATTERS):
        if not (np.abs(arrays[name]) <= LARGEST_REPORTED).all():
            return f"its {name} are not finite, or too large"
    return ""


def _report(problems: Mapping[int, str], config: RunConfig, federation: Federation) -> None:
    """Log the missing clients; raises UserError if they are not tolerated, or all are missing."""
    if not problems:
        return
    first = min(problems)
    sentence = (
        f"class-statistics: {len(problems)} of {config.training_clients} clients gave none "
        f"(client {first}{federation.place(first)}: {problems[first]})"
    )
    if len(problems) == config.training_clients or not config.tolerate_failures:
        raise UserError(f"{sentence}. {_REPEAT}")
    log.warning(sentence)
