"""`fedapp reproduce`: train published tables, and compare.

Results go to stdout as a table or JSON, progress messages and the runs' logs to stderr. Slow
imports are inside the functions, because the command line loads this file for `--help` too.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedapp.cli.options import AsJson, Jobs, Overrides, Project, show
from fedapp.config.overrides import read_overrides
from fedapp.core.errors import UserError
from fedapp.core.paths import absolute
from fedapp.experiments.papers.tables import find_paper

if TYPE_CHECKING:
    from fedapp.experiments.papers.cells import Cell
    from fedapp.experiments.papers.plan import Request

_REMARKABLE = ("at-chance seeds", "diverged seeds", "unfinished seeds", "unmeasured seeds")

Cells = Annotated[
    list[str] | None,
    typer.Option(help='Words of a cell\'s name, "feddr+ cifar100 s=10"; may be repeated.'),
]
DatasetAs = Annotated[str, typer.Option(help="Another copy of the same data set, such as images.")]
Seeds = Annotated[
    str, typer.Option(help="As 0,1,2 or 0-2; default: 0 to N-1, the paper averages over N.")
]
OutputDir = Annotated[
    Path | None, typer.Option(help="Folder for runs and results.csv; default: runs/PAPER-TABLE.")
]
Html = Annotated[
    Path | None, typer.Option("--html", help="Results page; default: OUTPUT-DIR/results.html.")
]
Speed = Annotated[float, typer.Option(min=0, help="Training speed, for --plan to estimate hours.")]


def reproduce(
    paper: Annotated[str, typer.Argument(help="A paper, see `fedapp papers`.")],
    table: Annotated[str, typer.Argument(help="One of its tables.")],
    cell: Cells = None,
    scale: Annotated[float, typer.Option(help="Factor on the published number of rounds.")] = 1.0,
    data_dir: Annotated[str, typer.Option(help="Folder that holds the data set.")] = "",
    dataset_as: DatasetAs = "",
    download: Annotated[bool, typer.Option("--download", help="Download missing data.")] = False,
    config: Overrides = None,
    seeds: Seeds = "",
    output_dir: OutputDir = None,
    plan: Annotated[bool, typer.Option("--plan", help="Print the planned runs, and stop.")] = False,
    images_per_second: Speed = 0.0,
    jobs: Jobs = 0,
    html: Html = None,
    project: Project = Path("."),
    as_json: AsJson = False,
) -> None:
    """Train a published table, or cells of it, and compare. Repeat the command to continue.

    Example: fedapp reproduce feddr+ table3-sharding --cell "feddr+ cifar100 s=10" --scale 0.1
    """
    from fedapp.experiments.papers.plan import Request
    from fedapp.experiments.sweep_options import parse_seeds

    folder = absolute(output_dir or Path("runs") / f"{paper}-{table}", "--output-dir")
    data = str(absolute(data_dir, "--data-dir")) if data_dir else ""
    changes = read_overrides(config or [], more=True)
    numbers = tuple(parse_seeds(seeds)) if seeds else ()
    request = Request(folder, scale, numbers, data, dataset_as, download, changes)
    cells = _chosen_cells(paper, table, cell or [], request)
    if plan:
        _show_plan(cells, request, images_per_second, as_json)
    else:
        _run(cells, request, project, as_json, jobs, html)


def _chosen_cells(paper: str, table: str, queries: list[str], request: Request) -> list[Cell]:
    """Return the requested cells, or all, checked."""
    from fedapp.experiments.papers.cells import cells_of, select
    from fedapp.experiments.papers.plan import check_changes, idle_changes

    found = find_paper(paper)
    cells = cells_of(found, found.table(table))
    chosen = {cell.name: cell for cell in (select(cells, query) for query in queries)}
    wanted = list(chosen.values()) or cells
    check_changes(wanted, request)
    for key in idle_changes(wanted, request):
        _say(f"{key} has no effect in these cells")
    return wanted


def _show_plan(
    cells: list[Cell], request: Request, images_per_second: float, as_json: bool
) -> None:
    """Print runs, images and hours, also of cells whose data are still to be fetched."""
    from fedapp.experiments.papers.cells import count_reasons
    from fedapp.experiments.papers.plan import data_problems, plan_rows, with_data

    if request.dataset_as:  # the copy fits the cells of one data set
        cells = with_data(cells, request)
    rows, missing = plan_rows(cells, request, images_per_second), data_problems(cells, request)
    if as_json:
        names = [str((cell.config or {}).get("dataset")) for cell in cells]
        pairs = zip(rows, names, strict=True)
        rows = [{**row, "missing data": missing.get(name) or None} for row, name in pairs]
        show("", rows, True)
        return
    show(_title("Plan", request), rows, False)
    runs, millions = sum(row["runs"] for row in rows), sum(r["million images"] or 0 for r in rows)
    able = sum(cell.config is not None for cell in cells)
    hours = f", {sum(r['hours'] or 0 for r in rows):.1f} hours" if images_per_second > 0 else ""
    print(
        f"{able} of {len(cells)} cells can run: {runs} runs, {millions:.1f} million images{hours}"
    )
    for reason, count in count_reasons(cells).items():
        print(f"{count} cannot: {reason}")
    for problem in filter(None, missing.values()):
        print(f"Data are missing here: {problem}")


def _run(
    cells: list[Cell],
    request: Request,
    project: Path,
    as_json: bool,
    jobs: int,
    html: Path | None,
) -> None:
    """Run the cells that can be run, then print and write the results.

    Exits 1 if a run failed or lacks the table's metric, or a file cannot be written.
    """
    from fedapp.core.files import try_write
    from fedapp.experiments.papers import reproduce as run

    able = _able(cells, request)
    run.check_folder(able, request)
    if jobs:
        run.run_ahead(able, request, project, jobs)
    rows: list[dict[str, Any]] = []
    for cell in able:
        if jobs:  # unfinished runs are reported, not repeated
            rows.append(run.result(cell, run.runs_so_far(cell, request)))
        else:
            rows.append(run.run_cell(cell, request, project))
        # a full disk must not end the other cells
        kept = try_write(run.RESULTS, lambda: run.write_results(request.output_dir, rows))
    _show_results(rows, request, as_json)
    path = request.output_dir / run.RESULTS
    page = (html or path.with_suffix(".html")).absolute()
    title = (able[0].paper, able[0].table)
    earlier = run.earlier_results(request.output_dir, rows)
    every = [*(row for row in earlier if (row["paper"], row["table"]) == title), *rows]
    files = {path: kept, page: _write_page(every, able[0], page)}
    if written := [str(file) for file, is_written in files.items() if is_written]:
        _say(f"wrote {' and '.join(written)}")
    lacking = any(row["unfinished seeds"] or row["unmeasured seeds"] for row in rows)
    is_whole = all(files.values()) and not lacking
    raise SystemExit(0 if is_whole else 1)


def _able(cells: list[Cell], request: Request) -> list[Cell]:
    """Return the cells that can run here, at least one; raises UserError if there is none."""
    from fedapp.experiments.papers.plan import with_data

    cells = with_data(cells, request)
    able = [cell for cell in cells if cell.config is not None]
    if not able:
        first = cells[0]
        raise UserError(f"cell '{first.name}' cannot run: {first.reason}: {first.detail}")
    if len(able) < len(cells):
        _say(f"{len(cells) - len(able)} of {len(cells)} cells cannot run; --plan says why")
    return able


def _write_page(rows: list[dict[str, Any]], cell: Cell, path: Path) -> bool:
    """Write the page of a table's results; return False, and say why, if it cannot be written."""
    from fedapp.core.files import try_write
    from fedapp.experiments.papers.results_page import write_results_page

    table = find_paper(cell.paper).table(cell.table)
    source = f"{table.source}. {table.caption}"
    return try_write(str(path), lambda: write_results_page(rows, source, path))


def _show_results(rows: list[dict[str, Any]], request: Request, as_json: bool) -> None:
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    show(_title("Published and reproduced", request), [_result_row(row) for row in rows], False)
    for row in rows:
        print(_result_text(row))


def _result_row(row: dict[str, Any]) -> dict[str, Any]:
    from fedapp.experiments.papers.results_page import compared

    return {
        **compared(row),
        "seeds": ", ".join(
            f"{word} {row[key]}".strip()
            for word, key in (("", "seeds"), *((k.split()[0], k) for k in _REMARKABLE))
            if row[key]
        ),
    }


def _result_text(row: dict[str, Any]) -> str:
    """Return the details below the table: accuracies, time, remarks and the exact command."""
    lines = [f"\n{row['cell']}, {row['rounds']} rounds"]
    if row["final accuracy %"] is not None:
        lines.append(
            f"  final accuracy {row['final accuracy %']:.2f} %, best {row['best accuracy %']:.2f} %"
            f" (round {row['best round']}), {row['seconds']:.1f} s on {row['device']}"
        )
    lines += [f"  {row['note']}"] if row["note"] else []
    return "\n".join([*lines, f"  {row['command']}"])


def _title(words: str, request: Request) -> str:
    label = request.label()
    return f"{words} (not the published setting: {label})" if label else words


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
