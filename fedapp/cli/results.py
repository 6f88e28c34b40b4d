"""The commands that show finished runs: the report of one run, the comparison of several.

Slow imports are inside the commands, so that `--help` is fast.
"""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedapp.cli.options import AsJson, say, show, write_png
from fedapp.core.errors import UserError
from fedapp.results.comparison.latex import latex_table
from fedapp.results.comparison.text import sentences, tables

if TYPE_CHECKING:
    from fedapp.results.run_directory import RunDirectory


def report(run: Annotated[Path, typer.Argument(help="A run directory.")]) -> None:
    """Rewrite the HTML report of a run from the files in its run directory.

    Example: fedapp report runs/feddr+-digits-20260101-120000
    """
    from fedapp.results.folders import readable, writing
    from fedapp.results.report.report import write_report  # imports NumPy

    with writing(run), readable(run):
        print(write_report(run))


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Run directories, or folders of them.")],
    plot: Annotated[Path | None, typer.Option(help="PNG file for the curves of all runs.")] = None,
    html: Annotated[
        Path | None, typer.Option("--html", help="HTML file for the comparison.")
    ] = None,
    latex: Annotated[Path | None, typer.Option(help="File for a LaTeX table of the means.")] = None,
    target: Annotated[
        float | None,
        typer.Option(help="Also when each group reached this accuracy, in percent: 60."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare runs: results, means over seeds, paired differences, curves in one plot.

    Example: fedapp compare runs/a runs/b --plot curves.png --html comparison.html
    """
    from fedapp.results.folders import named_runs, readable
    from fedapp.results.run_directory import RunDirectory

    if target is not None and not 0 < target <= 100:
        raise UserError(f"--target is {target:g} but must be a percentage above 0, at most 100")
    goal = None if target is None else target / 100
    named = [each for path in runs for each in named_runs(path)]
    opened = list({run.path: run for run in map(RunDirectory.load, named)}.values())
    with readable(*runs):
        _compare(opened, plot, html, latex, goal, as_json)


def _compare(
    opened: "list[RunDirectory]",
    plot: Path | None,
    html: Path | None,
    latex: Path | None,
    target: float | None,
    as_json: bool,
) -> None:
    from fedapp.results.comparison import groups as comparison
    from fedapp.results.plots import curves as plots

    groups = comparison.group_runs(opened)
    compared = comparison.compare(opened, groups, target)
    if as_json:
        print(json.dumps(compared, indent=2))
    else:
        for title, rows in tables(compared).items():
            show(title, rows, as_json)
        for sentence in sentences(compared):
            say(sentence)
    if plot is not None:
        names = comparison.run_labels(opened)
        lines = [(name, run.rounds()) for name, run in zip(names, opened, strict=True)]
        write_png(plots.compare_curves(lines), plot)
    if latex is not None:
        from fedapp.core.files import write_named  # imports NumPy

        table = latex_table(compared["groups"], comparison.all_comparable(groups))
        write_named(latex, table.encode(), "a file with a LaTeX table")
        print(f"wrote {latex.absolute()}", file=sys.stderr)
    if html is not None:
        from fedapp.results.comparison.page import write_comparison

        print(f"wrote {write_comparison(opened, html.absolute(), target)}", file=sys.stderr)


def runs(
    folder: Annotated[Path, typer.Argument(help="The folder that has the runs.")] = Path("runs"),
    sort: Annotated[
        str, typer.Option(help="age (the last changed first), final (the best first) or method.")
    ] = "age",
    as_json: AsJson = False,
) -> None:
    """List the runs in a folder and below it, those of sweeps too: what, how far, how well.

    Example: fedapp runs runs --sort final
    """
    from fedapp.results.run_list import runs_below, table_row

    found = runs_below(folder, sort)
    rows = [each.figures if as_json else table_row(each) for each in found]
    show(f"Runs in {folder}", rows, as_json)


def watch(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port on this machine; 0: a free one.")
    ] = 0,
) -> None:
    """Show the report of a running run in a browser on this machine; Ctrl-C ends.

    Example: fedapp watch runs/feddr+-digits-20260101-120000
    """
    from fedapp.results.report.live import report_server  # imports NumPy
    from fedapp.results.run_directory import RunDirectory

    with report_server(RunDirectory.load(run), port) as server:
        print(f"http://127.0.0.1:{server.server_address[1]}/ shows {run}; Ctrl-C ends", flush=True)
        server.serve_forever()
