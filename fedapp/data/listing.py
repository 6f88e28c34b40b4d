"""Rows of the `fedapp partition` tables."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedapp.data.partition import PARTITIONS

MOST_COLUMNS = 20  # more classes than this do not fit a terminal, so they are summed up


def kind_rows() -> list[dict[str, str]]:
    """Return one row per kind of partition, the values of the key `partition`."""
    return [{"partition": name, "meaning": kind.description} for name, kind in PARTITIONS.items()]


def client_rows(
    counts: np.ndarray, tests: Sequence[int], classes: Sequence[str], *, wide: bool
) -> list[dict[str, Any]]:
    """Return one row per client of `counts`, its training images [clients, classes].

    Args:
        counts: training images of each client and class.
        tests: test images of each client.
        classes: their names.
        wide: whether to give every class a column, however many there are.
    """
    rows = []
    for client, row in enumerate(counts):
        held: dict[str, Any] = dict(zip(classes, map(int, row), strict=True))
        if not wide and len(classes) > MOST_COLUMNS:
            most = int(row.argmax())
            held = {"classes": int((row > 0).sum()), "most of": classes[most]}
            held["share"] = f"{row[most] / max(row.sum(), 1):.0%}"
        rows.append({"client": client, **held, "train": int(row.sum()), "test": tests[client]})
    return rows
