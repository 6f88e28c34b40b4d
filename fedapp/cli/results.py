"""The commands that look at finished runs: the report of one, several side by side.

Imports that take seconds are inside the commands, so that `--help` is quick.
"""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from fedapp.cli.options import AsJson, show, write_png


def report(run: Annotated[Path, typer.Argument(help="A run directory.")]) -> None:
    """Write the HTML report of a run again, from the files of its directory.

    Example: fedapp report runs/feddr+-digits-20260101-120000
    """
    from fedapp.results.report import write_report  # imports NumPy

    print(write_report(run))


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Run directories.")],
    plot: Annotated[
        Path | None, typer.Option(help="Write the overlaid curves as a PNG here.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write the comparison as a page here.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Put runs side by side: figures, means over seeds, paired differences, curves in one plot.

    Example: fedapp compare runs/a runs/b --plot curves.png --html comparison.html
    """
    from fedapp.results import comparison
    from fedapp.results.plots import curves as plots
    from fedapp.results.run_directory import RunDirectory

    opened = [RunDirectory.load(path) for path in runs]
    compared = comparison.compare(opened)
    if as_json:
        print(json.dumps(compared, indent=2))
    else:
        for title, rows in comparison.tables(compared).items():
            show(title, rows, as_json)
    if plot is not None:
        lines = [(f"{run.summary().get('method')} ({run.name})", run.rounds()) for run in opened]
        write_png(plots.compare_curves(lines), plot)
    if html is not None:
        from fedapp.results.comparison_page import write_comparison

        print(f"wrote {write_comparison(opened, html.absolute())}", file=sys.stderr)


COMMANDS = (report, compare)
