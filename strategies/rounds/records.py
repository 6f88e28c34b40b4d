"""The contents of the messages between server and clients, as named Flower records.

Each *node* gets one message, which names the clients to train. Its reply has their models (or, from
a node that hosts several, their exact partial sum) and one report line per client.
"""

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from strategies.aggregate import Arrays

T = TypeVar("T")

PROTOCOL_VERSION = 11
ARRAYS = "arrays"
UPLOADS = "uploads"
TASK = "task"
REPORT = "report"
UNEXPORTED = "private."  # begins the names of a server's state that only checkpoints have
FAILURES = "failures"

DIVERGED = "diverged"
ERROR = "error"
LATE = "late"  # its node did not answer in time; counts as an error
LATE_REASON = "its node did not answer in time (round-timeout)"
# One client's own upload is invalid. The client is left out and the round continues, as when a
# client diverges. If a node's whole reply is refused, that is an ERROR of all its clients.
REFUSED = "refused"
_LONGEST_REASON = 2000  # characters of a failure's reason that are kept
_UNSENT = {"sent": False}  # of a field that is no column of a message


@dataclass(frozen=True)
class Task:
    """A node's work in one round, and the weights of its clients' models."""

    server_round: int
    clients: tuple[int, ...]
    lr: float
    weights: str  # "size": by number of examples; "uniform": equal weights
    total_weight: int  # of the whole cohort; determines the fixed-point scale of the sums
    cohort: int = 1  # number of clients in the whole cohort
    state_key: str = ""  # the name of the run's client states; empty: clients keep none
    # each client's last round that the server accepted, 0: none; empty if they keep no state
    accepted: tuple[int, ...] = ()
    separate: bool = False  # send each client's model separately, not their sum
    summed: bool = False  # send the exact sum also of a single client, which can be masked
    files: str = ""  # names and hashes of the user's files with which the run began

    def to_record(self) -> ConfigRecord:
        """Return the task as a Flower record."""
        values = {**asdict(self), "clients": list(self.clients), "accepted": list(self.accepted)}
        # Flower cannot count the bytes of an empty text or list, so empty values are left out
        return ConfigRecord({n: value for n, value in values.items() if value not in ("", [])})

    @classmethod
    def from_record(cls, record: ConfigRecord) -> "Task":
        """Read a task back from a Flower record."""
        values: dict[str, Any] = {f.name: record[f.name] for f in fields(cls) if f.name in record}
        tuples = {name: tuple(values.get(name, ())) for name in ("clients", "accepted")}
        return cls(**{**values, **tuples})

    def accepted_round(self, client: int) -> int | None:
        """Return a client's last round that the server accepted, 0 for none; None if not stated."""
        return self.accepted[self.clients.index(client)] if self.accepted else None

    def weight(self, examples: int) -> int:
        """Return the integer weight of a client that trained on this many examples."""
        return weight_of(self.weights, examples)


def weight_of(weights: str, examples: int) -> int:
    """Return the integer weight of a client; `weights` is "size" or "uniform"."""
    return examples if weights == "size" else 1


@dataclass(frozen=True)
class ClientResult:
    """One client's line in a report."""

    client: int
    examples: int  # the client's training examples
    steps: int  # optimiser steps taken; 0: none, or not reported, as the loss
    loss: float  # mean training loss over those steps
    seconds: float
    payload: int  # bytes of the arrays the client sent
    squared_distance: float  # ||w_i - w_g||^2 over trained parameters
    effective_steps: float = 0.0  # FedNova's a_i
    images: int = 0  # images in all batches; repeated images count repeatedly
    reinitialised: int = 0  # 1: its state was lost, and it started without one


@dataclass(frozen=True)
class ClientFailure:
    """Why a client's update, or its evaluation, is missing from a round."""

    client: int
    kind: str  # DIVERGED, ERROR, LATE or REFUSED
    reason: str
    place: str = field(default="", metadata=_UNSENT)  # " on NODE", which the server knows


def failures_of(clients: Iterable[int], reason: str, kind: str = ERROR) -> list[ClientFailure]:
    """Return the same failure for each client of a node."""
    return [ClientFailure(client, kind, shortened(reason)) for client in clients]


def to_array_record(arrays: Arrays) -> ArrayRecord:
    """Pack named arrays, C-contiguous, in a Flower record."""
    return Packer().pack(arrays)


class Packer:
    """Packs arrays for several messages, which share the packed form of an array that all get.

    The arrays must not change meanwhile.
    """

    def __init__(self) -> None:
        self._packed: dict[int, tuple[np.ndarray, Array]] = {}  # by the id of an array kept here

    def pack(self, arrays: Arrays) -> ArrayRecord:
        """Return the record that `to_array_record` returns."""
        for array in arrays.values():
            if id(array) not in self._packed:
                self._packed[id(array)] = array, Array(np.asarray(array, order="C"))
        return ArrayRecord({name: self._packed[id(array)][1] for name, array in arrays.items()})


def from_array_record(record: ArrayRecord) -> Arrays:
    """Unpack a Flower record into named arrays; raises ValueError for invalid bytes."""
    return {name: array.copy() for name, array in view_array_record(record).items()}


def view_array_record(record: ArrayRecord) -> Arrays:
    """Unpack a Flower record into read-only views of the record's bytes.

    Raises ValueError for bytes that do not encode an array.
    """
    return {name: _view(name, array) for name, array in record.items()}


def extra_records(content: RecordDict) -> dict[str, Arrays]:
    """Return every named group of arrays in a message except the shared model."""
    return {
        name: from_array_record(record)
        for name, record in content.array_records.items()
        if name != ARRAYS
    }


def pack_uploads(uploads: Mapping[int, Mapping[str, np.ndarray]]) -> ArrayRecord:
    """Pack the arrays that each client sends separately, under "<client>/<name>"."""
    return to_array_record(
        {f"{client}/{name}": a for client, arrays in uploads.items() for name, a in arrays.items()}
    )


def unpack_uploads(record: ArrayRecord) -> dict[int, Arrays]:
    """Return the arrays of each client; raises ValueError for a name without a client."""
    return {client: from_array_record(own) for client, own in split_uploads(record).items()}


def split_uploads(record: ArrayRecord) -> dict[int, ArrayRecord]:
    """Return the record of each client, still packed, because one client's bytes may be invalid.

    Raises ValueError for a name without a client.
    """
    uploads: dict[int, dict[str, Array]] = {}
    for label, array in record.items():
        client, _, name = label.partition("/")
        uploads.setdefault(int(client), {})[name] = array
    return {client: ArrayRecord(arrays) for client, arrays in uploads.items()}


def pack_report(results: list[ClientResult], failures: list[ClientFailure]) -> RecordDict:
    """Return the non-empty records of a report, with one column per field."""
    content = RecordDict()
    if results:
        content[REPORT] = MetricRecord(_columns(ClientResult, results))
    if failures:
        content[FAILURES] = ConfigRecord(_columns(ClientFailure, failures))
    return content


def unpack_report(content: RecordDict) -> tuple[list[ClientResult], list[ClientFailure]]:
    """Read a report; raises KeyError, TypeError or ValueError if it is malformed."""
    results = _rows(ClientResult, content.metric_records.get(REPORT))
    return results, unpack_failures(content)


def unpack_failures(content: RecordDict) -> list[ClientFailure]:
    """Read the failures of a reply; raises KeyError, TypeError or ValueError as `unpack_report`."""
    failures = _rows(ClientFailure, content.config_records.get(FAILURES))
    if other := {failure.kind for failure in failures} - {DIVERGED, ERROR}:
        raise ValueError(f"a failure is of the kind {sorted(other, key=str)[0]!r}")
    return [replace(failure, reason=shortened(failure.reason)) for failure in failures]


def shortened(reason: str) -> str:
    """Leave out the middle of a long reason: a traceback ends with its error."""
    if len(reason) <= _LONGEST_REASON:
        return reason
    half = _LONGEST_REASON // 2
    return f"{reason[:half]}\n...\n{reason[-half:]}"


def _view(name: str, array: Array) -> np.ndarray:
    """Return the same as `array.numpy()` without a copy, for the format of `numpy.save`.

    The memory use depends only on the number of received bytes. Raises ValueError for bytes in
    another format.
    """
    try:
        text = io.BytesIO(array.data)
        version = np.lib.format.read_magic(text)
        if version != (1, 0):
            raise ValueError(f"format {version}")
        shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(text)
        values = np.frombuffer(array.data, dtype, offset=text.tell())
        return values.reshape(shape, order="F" if is_fortran else "C")
    except Exception as error:  # malicious bytes may cause any error
        raise ValueError(f"'{name}' is no array: {error}") from None


def _columns(kind: type, rows: Sequence[Any]) -> Any:
    return {name: [getattr(row, name) for row in rows] for name in _sent(kind)}


def _rows(kind: type[T], columns: Mapping[str, Any] | None) -> list[T]:
    if columns is None:
        return []
    return [kind(*row) for row in zip(*(columns[n] for n in _sent(kind)), strict=True)]


def _sent(kind: type) -> list[str]:
    return [each.name for each in fields(kind) if each.metadata.get("sent", True)]
