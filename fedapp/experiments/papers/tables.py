"""The published numbers: four papers with their tables, one number per row.

The JSON files in `data/` have facts copied from the papers' texts, with their source in the paper
and every doubt about the copy. Nothing is corrected. This module only reads them.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedapp.core.errors import unknown

FILES = {
    "feddr+": "feddr_plus.json",
    "fedfn": "fedfn.json",
    "fedntd": "fedntd.json",
    "feddor": "feddor.json",
}
_DATA = Path(__file__).parent / "data"


@dataclass(frozen=True)
class Row:
    """One published number.

    Attributes:
        method: the method's id; None if the number is a setting and not a result.
        column: the settings of the row's column (dataset, model, partition, lr, ...); they override
            the table's setting.
        metric: the measured quantity, for example "accuracy_percent".
        mean: the number; None if the paper, or its text, has none.
        std: its spread, if given.
        failed: whether the paper states that this run did not converge.
        note: remarks and doubts about this number.
        raw: the original text, if it cannot be correct.
    """

    method: str | None
    column: Mapping[str, Any]
    metric: str
    mean: float | None = None
    std: float | None = None
    failed: bool = False
    note: str = ""
    raw: str = ""


@dataclass(frozen=True)
class Table:
    """One table of a paper, or the part of it that has one metric."""

    id: str
    source: str  # the position in the paper
    caption: str
    setting: Mapping[str, Any]  # common settings of all its rows
    metric: str
    std_is: str  # what the spread covers, if not seeds or runs
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Paper:
    """One paper: its bibliographic data, tables, hyperparameters, oddities and doubts."""

    name: str
    about: Mapping[str, Any]
    doubts: tuple[str, ...]  # possible errors of the copy
    oddities: tuple[str, ...]  # contradictions in the paper
    hyperparameters: tuple[Mapping[str, Any], ...]
    tables: tuple[Table, ...]

    def table(self, name: str) -> Table:
        """Return a table by its id; raises UserError with the nearest ids for an unknown one."""
        by_id = {table.id: table for table in self.tables}
        if name not in by_id:
            raise unknown(f"table of {self.name}", name, by_id)
        return by_id[name]


def find_paper(name: str) -> Paper:
    """Return a paper by its name; raises UserError with the nearest names for an unknown one."""
    if name not in FILES:
        raise unknown("paper", name, FILES)
    return _read(name)


def all_papers() -> list[Paper]:
    """Return every paper, in the order of `FILES`."""
    return [_read(name) for name in FILES]


@lru_cache
def _read(name: str) -> Paper:
    content = json.loads((_DATA / FILES[name]).read_text(encoding="utf-8"))
    return Paper(
        name,
        content["paper"],
        tuple(content["doubts"]),
        tuple(content["oddities"]),
        tuple(content["hyperparameters"]),
        tuple(_table(table) for table in content["tables"]),
    )


def _table(content: Mapping[str, Any]) -> Table:
    return Table(
        content["id"],
        content["source"],
        content["caption"],
        content["setting"],
        content["metric"],
        content.get("std_is") or "",
        tuple(_row(row, content["metric"]) for row in content["rows"]),
    )


def _row(content: Mapping[str, Any], metric: str) -> Row:
    return Row(
        content.get("method"),
        content["column"],
        content.get("metric", metric),
        content.get("mean"),
        content.get("std"),
        content.get("failed", False),
        content.get("note", ""),
        content.get("ocr_raw", ""),
    )
