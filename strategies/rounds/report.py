"""What happened in one round: its report, its newest model, and the errors of a failed round."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message
from numpy.typing import NDArray

from strategies.aggregate import Arrays, UpdateRefused
from strategies.form import misfit
from strategies.rounds.records import DIVERGED, ERROR, LATE, ClientFailure, ClientResult

LARGEST_REPORTED = 1e100  # no sum of such numbers over clients can overflow


class RoundFailed(RuntimeError):  # noqa: N818 - an outcome of the round, shown to the user
    """A round gives no model; the message names the round, the clients and the reasons."""


class RoundDiverged(RoundFailed):
    """A round gives no model because its numbers are not finite, not because of an error."""


@dataclass(frozen=True)
class NewestModel:
    """The shared arrays after a round, those that belong to the strategy's state."""

    server_round: int
    arrays: ArrayRecord


@dataclass
class RoundReport:
    """What happened in one round of training; clients in ascending order."""

    server_round: int
    results: list[ClientResult] = field(default_factory=list)
    failures: list[ClientFailure] = field(default_factory=list)  # of clients without an update
    evaluation_failures: list[ClientFailure] = field(default_factory=list)
    asked: int = 0  # clients of the cohort
    bytes_down: int = 0  # of training messages
    bytes_up: int = 0
    client_bytes_down: int = 0  # of the arrays only, as if every client got its own message
    eval_bytes_down: int = 0  # of messages for the evaluation on the clients' test splits
    eval_bytes_up: int = 0
    client_accuracy: dict[str, Any] = field(default_factory=dict)  # its summary over clients
    scores: dict[int, dict[str, float]] = field(default_factory=dict)  # of each evaluated client
    unevaluated: list[int] = field(default_factory=list)  # clients without the requested accuracy
    metrics: dict[str, float] = field(default_factory=dict)  # the method's numbers, by name
    wait_seconds: float = 0.0  # spent waiting for updates, not adding them
    trained_at: float = field(default_factory=time.monotonic)  # when the next model was there

    @property
    def train_loss(self) -> float:
        """Mean training loss of the clients that took a step, weighted by their examples."""
        trained = [result for result in self.results if result.steps]
        total = sum(result.examples for result in trained)
        return sum(r.loss * r.examples for r in trained) / total if total else float("nan")

    @property
    def slowest(self) -> ClientResult | None:
        """The client that trained for the longest time; None if no client tells its time."""
        timed = [result for result in self.results if result.seconds > 0]
        return max(timed, key=lambda result: result.seconds, default=None)

    def timed(self, replies: Iterable[Message]) -> Iterator[Message]:
        """Pass the replies on, and add the time of waiting for them to `wait_seconds`."""
        iterator = iter(replies)
        while True:
            asked = time.monotonic()
            reply = next(iterator, None)
            self.wait_seconds += time.monotonic() - asked
            if reply is None:
                return
            yield reply

    def training_ends(self) -> None:
        """Note the time: what follows in the round are tests."""
        self.trained_at = time.monotonic()

    @property
    def all_failures(self) -> list[ClientFailure]:
        """The failures of training, then those of the evaluation."""
        return self.failures + self.evaluation_failures

    @property
    def errors(self) -> list[ClientFailure]:
        """The failures that end the run unless it tolerates failures."""
        return [failure for failure in self.all_failures if failure.kind in (ERROR, LATE)]

    def sort(self, place: Callable[[int], str]) -> None:
        """Sort by client, so that the order of the replies does not matter.

        New failures get the `place` of their clients, that of `Federation`.
        """
        self.results.sort(key=lambda result: result.client)
        for failures in (self.failures, self.evaluation_failures):
            failures.sort(key=lambda failure: failure.client)
            failures[:] = [f if f.place else replace(f, place=place(f.client)) for f in failures]

    def check(self, min_replies: int, tolerate_failures: bool, may_be_empty: bool = False) -> None:
        """Raise `RoundFailed` for an error that is not tolerated or for too few usable clients.

        With `may_be_empty` a round needs no usable client if `min_replies` is 1 and at least one
        client has answered.
        """
        self.check_errors(tolerate_failures)
        answered = len(self.errors) < len(self.failures)
        if may_be_empty and min_replies == 1 and answered:
            return
        if len(self.results) < min_replies:
            reasons = "; ".join(
                f"client {f.client}{f.place} {f.kind}: {f.reason}" for f in self.failures[:3]
            )
            total = len(self.results) + len(self.failures)
            raise self.failed(
                f"round {self.server_round} has {len(self.results)} usable updates of {total} "
                f"and needs {min_replies} (min-replies): {reasons}"
            )

    def failed(self, sentence: str) -> RoundFailed:
        """Return a `RoundDiverged` if all failures are divergence, otherwise a `RoundFailed`."""
        diverged = all(failure.kind == DIVERGED for failure in self.all_failures)
        return (RoundDiverged if diverged else RoundFailed)(sentence)

    def check_errors(self, tolerated: bool) -> None:
        """Raise `RoundFailed` if a client failed with an error, unless that is tolerated."""
        if self.errors and not tolerated:
            first = self.errors[0]
            raise RoundFailed(
                f"client {first.client}{first.place} failed in round {self.server_round}: "
                f"{first.reason}"
            )


def is_count(value: object) -> bool:
    """Return whether a reported value is a whole number that float64 holds exactly."""
    return isinstance(value, int) and 0 <= value < 2**53


def check_clients(reported: Sequence[int], expected: Sequence[int]) -> None:
    """Raise `UpdateRefused` unless a reply covers each requested client exactly once."""
    if sorted(reported) != sorted(expected):
        raise UpdateRefused(f"it reports on clients {sorted(reported)}, not {sorted(expected)}")


def fitted(arrays: object, expected: Arrays, server_round: int) -> Arrays:
    """Return a round's result in the received model's data types.

    Raises `RoundFailed` unless it has the names and shapes of that model.
    """
    if not isinstance(arrays, Mapping):
        raise RoundFailed(
            f"the server's rule returned {arrays!r} in round {server_round}, but must return the "
            "next model: an array for each name"
        )
    if difference := misfit(arrays, expected):
        raise RoundFailed(
            f"the server's rule returned arrays in round {server_round} that are not those of the "
            f"model: {difference}"
        )
    return {name: _converted(array, name, expected[name].dtype) for name, array in arrays.items()}


def _converted(array: object, name: str, kind: np.dtype[Any]) -> NDArray[Any]:
    try:
        return np.asarray(array, kind)
    except Exception as error:  # of any array library
        raise RoundFailed(
            f"the server's rule returned '{name}' as {type(array).__name__}, which NumPy cannot "
            f"read ({error}); return NumPy arrays"
        ) from None


def check_finite(
    arrays: Arrays, server_round: int, what: str = "a model", advice: str = ""
) -> None:
    """Raise `RoundDiverged` unless every value of a round's result is finite."""
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise RoundDiverged(
                f"round {server_round} gave {what} with non-finite values: '{name}'"
                + (f"; {advice}" if advice else "")
            )
