"""A cell: one published number with the run configuration that reproduces it, if there is one.

A cell's name contains its method, data set and partition, and what else distinguishes it from the
other cells of its table, for example "feddr+ cifar100 s=10" or "fedavg cifar10 s=2 lr=0.03
local-epochs=5".
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError, unknown
from fedapp.experiments.papers import protocol
from fedapp.experiments.papers.code_bases import (
    averaging_keys,
    batch_order_keys,
    published_test_note,
    spread_over_seeds,
    test_batch_keys,
)
from fedapp.experiments.papers.parameters import method_parameters
from fedapp.experiments.papers.personal import personal_keys
from fedapp.experiments.papers.protocol import CannotRunError, Keys, Published, Reason
from fedapp.experiments.papers.tables import Paper, Row, Table
from fedapp.experiments.papers.training import training_keys

_IN_EVERY_NAME = ("dataset", "partition")
_LABELS = {"shard": "s", "lda": "alpha", "dirichlet": "alpha", "pathological": "classes_per_client"}


@dataclass(frozen=True)
class Cell:
    """One published number.

    Attributes:
        name: unique in its table.
        row: the published number.
        config: kebab-case keys for `RunConfig`, without seed; None if it cannot run.
        reason: why it cannot run; None if it can.
        detail: the missing item.
        notes: values of the configuration that the paper does not state.
        seeds: the number of seeds of the paper's mean, if stated.
        measure: the key in `PAPER_METRICS` of what reads the number; empty if the cell cannot run.
        spread_of_clients: whether the paper's spread is over the clients of a run instead of seeds.
    """

    paper: str
    table: str
    name: str
    row: Row
    config: Mapping[str, Any] | None
    reason: Reason | None = None
    detail: str = ""
    notes: tuple[str, ...] = ()
    seeds: int = 1
    measure: str = ""
    spread_of_clients: bool = False


def cells_of(paper: Paper, table: Table) -> list[Cell]:
    """Return every cell of a table, in its order."""
    return [
        _cell(Published(paper, table, row), name)
        for row, name in zip(table.rows, cell_names(table), strict=True)
    ]


def configuration(published: Published) -> Keys:
    """Return the run configuration of a published number; raises `CannotRunError` if there is none.

    The groups of keys are evaluated in this order, so a missing method is reported before a missing
    data set, and both before a setting.
    """
    keys: Keys = {}
    for group in (
        protocol.method_keys,
        protocol.data_keys,
        protocol.metric_keys,
        protocol.partition_keys,
        protocol.special_keys,
        training_keys,
        test_batch_keys,
        personal_keys,
        averaging_keys,
        batch_order_keys,
        method_parameters,
    ):
        keys |= group(published)
    try:
        parse_config(keys)
    except UserError as error:
        raise CannotRunError(Reason.REFUSED, str(error)) from None
    return keys


def _cell(published: Published, name: str) -> Cell:
    identity = (published.paper.name, published.table.id, name, published.row)
    seeds = protocol.published_seeds(published)
    try:
        keys = configuration(published)
    except CannotRunError as error:
        return Cell(*identity, None, error.reason, error.detail, seeds=seeds)
    if published.row.mean is None and not published.row.failed:
        return Cell(*identity, None, Reason.NO_NUMBER, "the paper leaves it out", seeds=seeds)
    of_clients = "clients" in published.table.std_is
    spread = "±: over the clients of a run" if of_clients else _spread_note(published)
    tested = published_test_note(published.paper, published.table)
    notes = (*published.notes, *filter(None, (spread, tested)))
    measure = protocol.measure_name(published)
    return Cell(
        *identity, keys, notes=notes, seeds=seeds, measure=measure, spread_of_clients=of_clients
    )


def _spread_note(published: Published) -> str:
    """Return a note about the published spread if it is over other things than the run's."""
    note = spread_over_seeds(published.paper, published.table)
    return f"published ±: {note}" if note else ""


def cell_names(table: Table) -> list[str]:
    """Return the cells' names: the common parts, and the columns that distinguish equal ones."""
    columns = [{**row.column, "metric": row.metric} for row in table.rows]
    stems = [_stem(row, table) for row in table.rows]
    values: dict[tuple[str, str], set[str]] = defaultdict(set)
    for stem, column in zip(stems, columns, strict=True):
        for key in {key for other in columns for key in other} - set(_IN_EVERY_NAME):
            values[stem, key].add(str(column.get(key)))
    return [
        " ".join(
            [stem]
            + [
                f"{key.replace('_', '-')}={str(value).replace(' ', '-')}"
                for key, value in column.items()
                if len(values[stem, key]) > 1
            ]
        )
        for stem, column in zip(stems, columns, strict=True)
    ]


def _stem(row: Row, table: Table) -> str:
    setting = {**table.setting, **row.column}
    words = [row.method or "setting", str(setting.get("dataset", "")), _label(setting)]
    return " ".join(word for word in words if word)


def _label(setting: Mapping[str, Any]) -> str:
    """Return a partition in one word: s=10, alpha=0.1, classes=2 or iid."""
    partition = setting.get("partition")
    if not isinstance(partition, Mapping):
        return ""
    key = _LABELS.get(partition["kind"], "")
    value = partition.get(key)
    return partition["kind"] if value is None else f"{key.split('_')[0]}={value:g}"


def select(cells: Iterable[Cell], query: str) -> Cell:
    """Return the cell whose name has all words of `query`, in any order.

    Raises:
        UserError: no cell has them, or several have them and none has exactly these words.
    """
    all_cells = list(cells)
    words = set(query.lower().split())
    matches = [cell for cell in all_cells if words <= set(cell.name.lower().split())]
    exact = [cell for cell in matches if set(cell.name.lower().split()) == words]
    if len(exact) == 1 or len(matches) == 1:
        return (exact if len(exact) == 1 else matches)[0]
    if not matches:
        raise unknown("cell", query, [cell.name for cell in all_cells])
    names = ", ".join(f"'{cell.name}'" for cell in matches[:4])
    raise UserError(f"cell '{query}' is one of {len(matches)}; add words: {names}, ...")


def count_reasons(cells: Iterable[Cell]) -> dict[str, int]:
    """Return the number of cells that cannot run, by reason, the most frequent first."""
    return dict(Counter(str(cell.reason) for cell in cells if cell.reason).most_common())
