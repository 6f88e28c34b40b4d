"""The rounds of a run as typed rows: the fixed fields of metrics.jsonl, and further metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from fedapp.core.errors import UserError
from fedapp.results.report import page, report

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Round:
    """One round of a run.

    Attributes:
        round: its number, from 1.
        seconds: wall time, including the evaluation.
        wait_seconds: of them, waiting for the clients' updates.
        test_seconds: of them, tests; the rest is the server's own work.
        asked: number of clients in the cohort.
        clients: number of clients whose update was used.
        failed: number of clients without a usable update.
        train_loss: mean of the clients' training losses; None if there was none.
        accuracy: of the model or models that the method evaluates, as a fraction of the test
            images; None in a round without evaluation.
        loss: the test loss; None in a round without evaluation, or if it was not finite.
        bytes_down: bytes of the messages to the nodes.
        bytes_up: bytes of the messages from the nodes.
        client_bytes_down: bytes sent to clients, as if each had its own node.
        client_bytes_up: bytes sent by clients, as if each had its own node.
        images: training images that the clients processed, over all epochs.
        lr: learning rate.
        failures: the error message of each failed client.
        class_accuracy: accuracy on each class as a fraction, by label, None for a class without
            test images; None if no global model was tested.
        metrics: all other numbers of the round by name: those of the method and those of the
            clients' test splits.
    """

    round: int
    seconds: float
    wait_seconds: float
    test_seconds: float
    asked: int
    clients: int
    failed: int
    train_loss: float | None
    accuracy: float | None
    loss: float | None
    bytes_down: int
    bytes_up: int
    client_bytes_down: int
    client_bytes_up: int
    images: int
    lr: float
    failures: list[str]
    class_accuracy: list[float | None] | None
    metrics: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Round:
        """Read a line of metrics.jsonl; raises UserError if it lacks a fixed field."""
        always = [each.name for each in fields(cls) if each.name != "metrics"]
        if missing := [name for name in always if name not in row]:
            raise UserError(
                f"round {row.get('round')} of metrics.jsonl has no '{missing[0]}'; "
                "it was not written by this version of fedapp"
            )
        rest = {key: value for key, value in row.items() if key not in always}
        return cls(**{name: row[name] for name in always}, metrics=rest)


class Rounds(list[Round]):
    """The rounds of a run, in order: a list that a notebook displays as a table."""

    def to_pandas(self) -> pd.DataFrame:
        """Return a data frame with a line per round and a column per further metric.

        Raises UserError if pandas is not installed.
        """
        return to_frame([_flat(each) for each in self])

    def _repr_html_(self) -> str:
        """Show the last rounds, with the columns of the report."""
        rows = [_row_text(each) for each in self[-report.LAST_ROUNDS :]]
        return page.table(f"The last of {len(self)} rounds", rows)


def to_frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return rows as a data frame; raises UserError if pandas is not installed."""
    try:
        import pandas as pd
    except ImportError:
        raise UserError(
            "to_pandas needs pandas, which is not installed: `pip install pandas`"
        ) from None
    return pd.DataFrame([dict(row) for row in rows])


def _flat(each: Round) -> dict[str, Any]:
    values = asdict(each)
    metrics = values.pop("metrics")
    return {**values, **metrics}


def _row_text(each: Round) -> dict[str, str | None]:
    values = vars(each)
    return {
        head: None if values[key] is None else write(values[key])
        for key, (head, write) in report.COLUMNS.items()
    }
