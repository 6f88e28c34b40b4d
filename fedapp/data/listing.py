"""Rows of the `fedapp partition` tables."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedapp.data.partition import PARTITIONS

MOST_COLUMNS = 20  # more classes than this do not fit a terminal, so they are summed up
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
