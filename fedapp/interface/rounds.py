"""The rounds of a run as typed rows: what every line of metrics.jsonl has, and the rest of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from fedapp.core.errors import UserError
from fedapp.results import page, report

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Round:
    """One round of a run.

    Attributes:
        round: its number, from 1.
        seconds: wall time, the evaluation included.
        asked: clients that were asked to train.
        clients: clients whose update was used.
        failed: clients that sent none that could be used.
        train_loss: mean of the clients' training losses; None where there was none.
        accuracy: of the model or models that the method is about, as a fraction of the test images;
            None in a round that was not evaluated.
        loss: the test loss; None likewise, and where it was not finite.
        bytes_down: bytes of the messages to the nodes.
        bytes_up: bytes of the messages from them.
        client_bytes_down: bytes that went to clients, each counted as if alone on its node.
        client_bytes_up: bytes that clients sent, counted likewise.
        images: training images that the clients went through, every epoch counted.
        lr: learning rate.
        failures: of each client that failed, what it said.
        class_accuracy: accuracy on each class as a fraction, by label, None for a class without
            test images; None where no global model was tested.
        metrics: all other numbers of the round by name: the method's own, those of the clients'
            test splits.
    """

    round: int
    seconds: float
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
        """Read a line of metrics.jsonl; raises UserError where it lacks what every line has."""
        always = [each.name for each in fields(cls) if each.name != "metrics"]
        if missing := [name for name in always if name not in row]:
            raise UserError(
                f"round {row.get('round')} of metrics.jsonl has no '{missing[0]}'; "
                "it was not written by this version of fedapp"
            )
        rest = {key: value for key, value in row.items() if key not in always}
        return cls(**{name: row[name] for name in always}, metrics=rest)


class Rounds(list[Round]):
    """The rounds of a run, in order; a list that a notebook shows as a table."""

    def to_pandas(self) -> pd.DataFrame:
        """Return a data frame with a line per round, the other metrics as columns of their own.

        Raises UserError where pandas is not installed.
        """
        return to_frame([_flat(each) for each in self])

    def _repr_html_(self) -> str:
        """Show the last rounds, with the columns of the report."""
        rows = [_row_text(each) for each in self[-report.LAST_ROUNDS :]]
        return page.table(f"The last of {len(self)} rounds", rows)


def to_frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return rows as a data frame; raises UserError where pandas is not installed."""
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
