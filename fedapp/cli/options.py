"""Options that several commands share, and functions that print results.

All command modules import this module; it imports none of them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedapp.core.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--config",
        "-c",
        help="A preset, a TOML file or \"key=value key2='text'\"; may be repeated, a later one "
        "overrides an earlier one.",
    ),
]
Project = Annotated[Path, typer.Option("--app", help="Folder that contains pyproject.toml.")]
Jobs = Annotated[
    int,
    typer.Option(
        min=0, help="Parallel runs, one process each; 0: one run at a time, on worker processes."
    ),
]


def show(title: str, rows: list[dict[str, Any]], as_json: bool) -> None:
    """Print rows as a table that fits the terminal, or as JSON."""
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
    for column in rows[0] if rows else ():
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*("-" if value is None else _text(value) for value in row.values()))
    Console().print(table)


def write_png(figure: Figure, path: Path) -> None:
    """Write a figure, make its folder if needed, and print the path to stderr.

    Raises UserError where the file cannot be written.
    """
    from fedapp.core.files import write_atomically
    from fedapp.results.plots.rendering import png

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, png(figure))
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error}") from None
    print(f"wrote {path.absolute()}", file=sys.stderr)


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
