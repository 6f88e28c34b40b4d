"""`fedapp papers`: list the published tables, their numbers, and which of them can run.

Slow imports are inside the functions, because the command line loads this file for `--help` too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedapp.cli.options import AsJson, show
from fedapp.experiments.papers.tables import Paper, Table, all_papers, find_paper

if TYPE_CHECKING:
    from fedapp.experiments.papers.cells import Cell


def papers(
    paper: Annotated[str, typer.Argument(help="A paper; default: all.")] = "",
    table: Annotated[str, typer.Argument(help="One of its tables; default: all.")] = "",
    as_json: AsJson = False,
) -> None:
    """List the papers' tables, or the published numbers of one table, and which of them can run.

    Example: fedapp papers feddr+ table3-sharding
    """
    chosen = [find_paper(paper)] if paper else all_papers()
    if table:
        _show_table(chosen[0], chosen[0].table(table), as_json)
        return
    rows = [_table_row(one, each) for one in chosen for each in one.tables]
    show("Published tables", rows, as_json)
    if paper and not as_json:
        about = chosen[0].about
        print(f"{about['title']}. {about['venue']}.")
        _list("Possible errors in the copied numbers", chosen[0].doubts)
        _list("Inconsistencies in the paper", chosen[0].oddities)


def _table_row(paper: Paper, table: Table) -> dict[str, Any]:
    from fedapp.experiments.papers.cells import cells_of

    able = sum(cell.config is not None for cell in cells_of(paper, table))
    return {
        "paper": paper.name,
        "table": table.id,
        "source": table.source,
        "metric": table.metric.replace("_", " ").replace("percent", "%"),
        "numbers": len(table.rows),
        "can run": able,
    }


def _show_table(paper: Paper, table: Table, as_json: bool) -> None:
    """Print the numbers of one table, each with the reason if it cannot be run."""
    from fedapp.experiments.papers.cells import cells_of
    from fedapp.experiments.papers.code_bases import published_test_note, spread_over_seeds
    from fedapp.experiments.papers.plan import published_text

    cells = cells_of(paper, table)
    if as_json:
        show("", [_cell_object(cell) for cell in cells], True)
        return
    rows = [
        {
            "cell": cell.name,
            "published": published_text(cell),
            "cannot run because": f"{cell.reason}: {cell.detail}" if cell.reason else None,
            "note": cell.row.note or None,
        }
        for cell in cells
    ]
    show(f"{paper.name}, {table.source}: {table.metric}", rows, False)
    print(table.caption)
    spread = table.std_is or spread_over_seeds(paper, table)
    if spread and any(row.std is not None for row in table.rows):
        print(f"±: {spread}.")
    if note := published_test_note(paper, table):
        print(f"{note[0].upper()}{note[1:]}.")


def _cell_object(cell: Cell) -> dict[str, Any]:
    row = cell.row
    return {
        "cell": cell.name,
        "metric": row.metric,
        "mean": row.mean,
        "std": row.std,
        "failed": row.failed,
        "note": row.note,
        "raw": row.raw,
        "config": cell.config,
        "cannot run because": f"{cell.reason}: {cell.detail}" if cell.reason else "",
        "assumptions": list(cell.notes),
    }


def _list(title: str, lines: tuple[str, ...]) -> None:
    print(f"\n{title}:")
    for line in lines:
        print(f"- {line}")
