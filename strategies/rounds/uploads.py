"""Rounds in which the server reads a separate upload from every client.

The server can refuse one client's upload without affecting other clients of the same node.
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
    """Reads each client's upload; an invalid one is refused and the round continues without it.

    A round without any upload continues too, because the server can wait for the next uploads.
    """

    continues_without_results = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._read: dict[int, U] = {}

    def read(self, client: int, arrays: Arrays) -> U:
        """Check and return a client's upload; raises `UpdateRefused`."""
        raise NotImplementedError

    def uploads(self) -> list[U]:
        """Return this round's uploads in ascending order of the clients, which methods rely on."""
        return [self._read[client] for client in sorted(self._read)]

    def begin_round(self, received: Arrays, total_weight: int, cohort: int) -> None:
        """Discard the uploads of the previous round."""
        self._read = {}

    def add_reply(
        self, content: RecordDict, task: Task, results: list[ClientResult]
    ) -> list[ClientResult]:
        """Keep the valid uploads of a node's clients; return these clients' results."""
        record = content.array_records.get(UPLOADS)
        uploads = split_uploads(record) if record is not None else {}
        valid: dict[int, U] = {}
        refused: list[ClientFailure] = []
        for client in (result.client for result in results):
            try:
                valid[client] = self.read(client, _arrays(uploads.get(client)))
            except UpdateRefused as error:
                reason = f"its upload was refused: {error}"
                refused.append(ClientFailure(client, REFUSED, reason))
        self._read |= valid
        self.report.failures += refused
        return [result for result in results if result.client in valid]


def _arrays(record: ArrayRecord | None) -> Arrays:
    """Return the arrays of one client's record; raises `UpdateRefused` for invalid bytes."""
    try:
        return from_array_record(record) if record is not None else {}
    except ValueError as error:
        raise UpdateRefused(str(error)) from None
