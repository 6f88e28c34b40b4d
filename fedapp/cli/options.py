"""Options that several commands share, and functions that print results.

All command modules import this module; it imports none of them.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from click import Context, NoSuchOption, Parameter, UsageError
from typer.core import TyperCommand, TyperOption

from fedapp.config.project import app_folder
from fedapp.core.extension_files import add_files
from fedapp.core.log import set_level
from fedapp.results.formatting import cell_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

LONGEST_NAME, SHORT = 40, 12  # characters of a cell that is not wrapped: a name; other text
LEAST_WIDTH, UNLIMITED = 8, 10_000  # characters of a column; of a line in a pipe
CONFIG = "config"  # the parameter of `Overrides`

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


def _app(project: Path) -> Path:
    """Return the app's folder; without any, one with the installed packages."""
    if (found := app_folder(project)) is not None:
        return found
    from fedapp.config.installed_app import find_app  # imports PyTorch

    return find_app(project)


Project = Annotated[
    Path,
    typer.Option(
        "--app",
        callback=_app,
        help="Folder of the app's pyproject.toml; in a folder without one: the installed fedapp.",
    ),
]
Jobs = Annotated[
    int,
    typer.Option(
        min=0, help="Parallel runs, one process each; 0: one run at a time, on worker processes."
    ),
]


class Command(TyperCommand):
    """A command with --quiet and --verbose, which set the log level, and --extension."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Add the three options."""
        super().__init__(*args, **kwargs)
        self.params += [
            _extension_option(),
            _level_option("--quiet", "WARNING", "Log warnings and errors only."),
            _level_option("--verbose", "DEBUG", "Log details."),
        ]

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Parse arguments; where the command has run-config keys, say how they are given."""
        try:
            return super().parse_args(ctx, args)
        except UsageError as mistake:
            unknown = type(mistake) in (UsageError, NoSuchOption)  # an argument or an option
            if not unknown or all(each.name != CONFIG for each in self.params):
                raise
            how = "Keys of a run are given as -c \"KEY=VALUE KEY2='TEXT'\""
            raise UsageError(f"{mistake.format_message()}\n{how}", ctx) from None


def _level_option(name: str, level: str, meaning: str) -> TyperOption:
    def use(context: Context, option: Parameter, chosen: bool) -> None:
        if chosen:
            set_level(level)

    return TyperOption(
        param_decls=[name], is_flag=True, expose_value=False, callback=use, help=meaning
    )


def _extension_option() -> TyperOption:
    def use(context: Context, option: Parameter, files: tuple[str, ...]) -> None:
        add_files(files)

    return TyperOption(
        param_decls=["--extension"], multiple=True, expose_value=False, is_eager=True, callback=use,
        metavar="FILE", help="A Python file of your own with methods, losses, data sets, models.",
    )  # fmt: skip


def show(title: str, rows: list[dict[str, Any]], as_json: bool) -> None:
    """Print rows as a table that fits the terminal, or as JSON; long texts wrap, names do not.

    A pipe or a file gets every row on one line. Text is printed as it is: square brackets in names,
    paths and errors are no markup.
    """
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    if not rows:
        say(f"{title}: none")
        return
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    screen = console()
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    whole = _unwrapped(rows, screen.width)
    for column in rows[0]:
        table.add_column(column, overflow="fold", no_wrap=column in whole)
    for row in rows:
        table.add_row(*map(cell_text, row.values()))
    screen.print(table)


def _unwrapped(rows: list[dict[str, Any]], width: int) -> set[str]:
    """Return the columns whose cells stay on one line: names and numbers, as far as they fit."""
    columns = list(rows[0])
    free, found = width - LEAST_WIDTH * len(columns), set()
    for number, column in enumerate(columns):
        texts = [column, *(cell_text(row[column]) for row in rows)]
        longest = max(map(len, texts))
        name = not any(" " in text for text in texts[1:])
        if longest <= (LONGEST_NAME if name or not number else SHORT):
            free -= max(0, longest + 2 - LEAST_WIDTH)
            if free >= 0:
                found.add(column)
    return found


def console() -> Console:
    """Return where tables are printed: as wide as the terminal, or unlimited in a pipe."""
    from rich.console import Console

    wide = None if sys.stdout.isatty() or "COLUMNS" in os.environ else UNLIMITED
    return Console(markup=False, emoji=False, highlight=False, width=wide)


def say(text: str = "") -> None:
    """Print a paragraph, wrapped at the terminal's width between words."""
    console().print(text)


def write_png(figure: Figure, path: Path) -> None:
    """Write a figure, make its folder if needed, and print the path to stderr.

    Raises UserError where the file cannot be written.
    """
    from fedapp.core.files import write_named
    from fedapp.results.plots.rendering import png

    write_named(path, png(figure), "a PNG file")
    print(f"wrote {path.absolute()}", file=sys.stderr)


def check_run_directories(*runs: Path) -> None:
    """Raise UserError if one is no run directory, before the imports that take seconds."""
    from fedapp.results.folders import existing

    for run in runs:
        existing(run)
