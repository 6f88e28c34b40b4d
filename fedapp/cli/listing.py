"""The method table, the kinds of partitions and the clients of a partition, as rows of text."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedapp.config.extensions import METHODS
from fedapp.config.key_groups import kebab
from fedapp.data.partition.table import PARTITIONS
from fedapp.methods.row import ADD, PERTURB, Method
from fedapp.results import formatting


def method_rows() -> list[dict[str, str]]:
    """Return the method table as text, one dictionary per row."""
    return [method_row(name, row) for name, row in METHODS.items()]


def method_row(name: str, row: Method) -> dict[str, str]:
    """Return one row of the method table as text; "-": nothing."""
    return {
        "method": name,
        "title": row.title,
        "head": row.head.name if row.heterogeneous is None else row.heterogeneous.style,
        "loss": row.loss.base,
        "regulariser": row.loss.regulariser or "-",
        "combined": _combination(row),
        "strategy": row.server.kind.__name__,
        "client": row.client.kind.__name__,
        "sends": _sent(row),
        "keeps": _kept(row),
        "defaults": " ".join(f"{kebab(key)}={_text(v)}" for key, v in row.defaults.items()) or "-",
        "source": row.source,
    }


def _sent(row: Method) -> str:
    """Return what clients send: the shared tensors, if any, and what else."""
    shared, also = row.exchange.sends, row.exchange.also_sends
    return also if also and shared == "nothing" else ", ".join(filter(None, (shared, also)))


def markdown_table() -> str:
    """Return the method table for docs/methods.md."""
    rows = method_rows()
    lines = [[f"`{row['method']}`", *list(row.values())[1:]] for row in rows]
    return "\n".join(formatting.markdown_table(list(rows[0]), lines))


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _kept(row: Method) -> str:
    key, value = row.exchange.keeps_if
    words = row.kept(row.loss.regulariser, {key: value}) or "-"
    return f"{words} ({key}={value})" if key else words


def _combination(row: Method) -> str:
    if row.loss.regulariser is None:
        return row.loss.base
    if row.loss.combine == ADD:
        return f"{row.loss.base} + {row.loss.weight} {row.loss.regulariser}"
    if row.loss.combine == PERTURB:
        return f"{row.loss.base} at weights moved along {row.loss.regulariser}"
    return f"beta {row.loss.base} + (1 - beta) {row.loss.regulariser}"


MOST_COLUMNS = 20  # more classes than this do not fit a terminal, so they are summarised
_TOTALS = ("client", "train", "test")  # columns of their own


def kind_rows() -> list[dict[str, str]]:
    """Return one row per kind of partition, the values of the key `partition`."""
    return [{"partition": name, "meaning": kind.description} for name, kind in PARTITIONS.items()]


def client_rows(
    counts: np.ndarray, tests: Sequence[int], classes: Sequence[str], *, nested: bool
) -> list[dict[str, Any]]:
    """Return one row per client of `counts`, its training images [clients, classes].

    Args:
        counts: training images of each client and class.
        tests: test images of each client.
        classes: their names.
        nested: whether to give all classes, in a dictionary called "classes", rather than columns.
    """
    rows = []
    for client, row in enumerate(counts):
        held = _nested(row, classes) if nested else _columns(row, classes)
        rows.append({"client": client, **held, "train": int(row.sum()), "test": tests[client]})
    return rows


def _nested(row: np.ndarray, classes: Sequence[str]) -> dict[str, Any]:
    """Return the images of each class by its name, which may be that of a column."""
    return {"classes": dict(zip(classes, map(int, row), strict=True))}


def _columns(row: np.ndarray, classes: Sequence[str]) -> dict[str, Any]:
    """Return a column for each class, or a summary of more than fit a terminal."""
    if len(classes) <= MOST_COLUMNS:
        titles = (f"class {name}" if name in _TOTALS else name for name in classes)
        return dict(zip(titles, map(int, row), strict=True))
    most = int(row.argmax())
    share = f"{row[most] / max(row.sum(), 1):.0%}"
    return {"classes": int((row > 0).sum()), "most of": classes[most], "share": share}
