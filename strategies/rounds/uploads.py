"""Rounds in which every client uploads something of its own, to be read client by client.

What one client sends can be refused without touching the others, also when they share a node.
"""

from typing import Any, Generic, TypeVar

from flwr.app import ArrayRecord, RecordDict

from strategies.aggregate import Arrays, UpdateRefused
from strategies.rounds.base import ClientStrategy
from strategies.rounds.records import (
    REFUSED,
    UPLOADS,
    ClientFailure,
    ClientResult,
    Task,
    from_array_record,
    split_uploads,
)

U = TypeVar("U")


class UploadRounds(ClientStrategy, Generic[U]):
    """Reads each client's upload; a bad one is refused by its client's id and the round goes on.

    So it does without any upload, for the server's work can wait for the next round's.
    """

    goes_on_empty = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._read: dict[int, U] = {}

    def read(self, client: int, arrays: Arrays) -> U:
        """Return what a client uploaded, checked; raises `UpdateRefused`."""
        raise NotImplementedError

    def uploads(self) -> list[U]:
        """Return this round's uploads by client, whatever the order of the replies."""
        return [self._read[client] for client in sorted(self._read)]

    def open_round(self, received: Arrays, total_weight: int, cohort: int) -> None:
        """Forget the uploads of the round before."""
        self._read = {}

    def take(self, content: RecordDict, task: Task, results: list[ClientResult]) -> None:
        """Keep the good uploads of a node's clients."""
        record = content.array_records.get(UPLOADS)
        uploads = split_uploads(record) if record is not None else {}
        good: dict[int, U] = {}
        refused: list[ClientFailure] = []
        for client in (result.client for result in results):
            try:
                good[client] = self.read(client, _arrays(uploads.get(client)))
            except UpdateRefused as refusal:
                reason = f"its upload was refused: {refusal}"
                refused.append(ClientFailure(client, REFUSED, reason))
        self._read |= good
        results[:] = [result for result in results if result.client in good]
        self.report.failures += refused


def _arrays(record: ArrayRecord | None) -> Arrays:
    """Return the arrays of one client's record; raises `UpdateRefused` if they are none."""
    try:
        return from_array_record(record) if record is not None else {}
    except ValueError as error:
        raise UpdateRefused(str(error)) from None
