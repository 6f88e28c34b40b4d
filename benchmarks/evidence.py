"""Keeps the runs of published tables as data in docs/evidence, and draws the pages from them.

    python benchmarks/evidence.py collect FOLDER... --commit HASH --hardware "2 cores of ..."
    python benchmarks/evidence.py write

`collect` reads run directories below FOLDER (those that `fedapp reproduce` made, and others) into
runs.csv, one line per run, and rounds.csv, one line per run and evaluated round; lines of runs that
are collected again are replaced. `write` draws the curves and fills the marked tables of the pages.
"""

import argparse
import csv
import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from evidence_plots import published_beside_curves

from fedapp.analysis.accuracy import forgetting
from fedapp.papers.cells import Cell, cell_names, cells_of
from fedapp.papers.plan import PlannedRun, Request
from fedapp.papers.tables import all_papers, find_paper
from fedapp.results.files import write_atomically
from fedapp.results.folders import folder_name
from fedapp.results.formatting import markdown_table
from fedapp.results.rendering import png
from fedapp.results.run_directory import RunDirectory

DOCS = Path(__file__).parents[1] / "docs"
DATA, IMAGES = DOCS / "evidence", DOCS / "images"
PAGES = (DOCS / "evidence.md", DOCS.parent / "README.md")
RUN_COLUMNS = (
    "run", "paper", "table", "cell", "changes", "published", "published std", "method", "dataset",
    "model", "partition", "lr", "local epochs", "rounds", "done", "status", "seed", "final %",
    "best %", "forgetting", "hours", "hardware", "commit", "date", "command",
)  # fmt: skip
ROUND_COLUMNS = ("run", "round", "accuracy %", "loss", "train loss", "forgetting", "seconds")
Line = dict[str, Any]
Record = Mapping[str, str]


def collect(folders: Sequence[Path], commit: str, hardware: str) -> None:
    """Add the runs below some folders to runs.csv and rounds.csv."""
    found = [RunDirectory.load(file.parent) for folder in folders for file in _configs(folder)]
    made = {"commit": commit, "hardware": hardware, "date": date.today().isoformat()}
    runs = [_run_line(run) | made for run in found if run.rounds()]
    rounds = [line for run in found for line in _round_lines(run)]
    names = {line["run"] for line in runs}
    for name, columns, lines in (
        ("runs.csv", RUN_COLUMNS, runs),
        ("rounds.csv", ROUND_COLUMNS, rounds),
    ):
        kept = [line for line in read(name) if line["run"] not in names]
        _write(name, columns, sorted([*kept, *lines], key=lambda line: line["run"]))
        print(f"{name}: {len(lines)} lines new or replaced, {len(kept)} kept")


def _configs(folder: Path) -> Iterator[Path]:
    return (
        file for file in sorted(folder.rglob("config.toml")) if file.parent.name != "checkpoints"
    )


def read(name: str) -> list[dict[str, str]]:
    """Return the lines of a file of docs/evidence, none if it is not there."""
    path = DATA / name
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _write(name: str, columns: Sequence[str], lines: Iterable[Mapping[str, Any]]) -> None:
    DATA.mkdir(parents=True, exist_ok=True)
    with (DATA / name).open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


def _run_line(run: RunDirectory) -> Line:
    keys, rows = run.config(), [row for row in run.rounds() if row["accuracy"] is not None]
    summary = run.summary() if (run.path / "summary.json").is_file() else {}
    cell = _cell_of(run.path.name, keys)
    last = rows[-1]["accuracy"] if rows else None
    line: Line = {
        "run": run.path.name,
        "method": keys["method"],
        "dataset": keys["dataset"],
        "model": keys["model"],
        "partition": _partition(keys),
        "lr": f"{keys['lr']:g}",
        "local epochs": keys["local-epochs"],
        "rounds": keys["num-rounds"],
        "done": run.rounds()[-1]["round"],
        "status": summary.get("status", "unfinished"),
        "seed": keys["seed"],
        "final %": _percent(last),
        "best %": _percent(max((row["accuracy"] for row in rows), default=None)),
        "forgetting": _forgetting(rows),
        "hours": f"{sum(row['seconds'] for row in run.rounds()) / 3600:.2f}",
    }
    return line | (_published(cell, keys) if cell else {})


def _published(cell: Cell, keys: Mapping[str, Any]) -> Line:
    request = _request(cell, keys)
    command = f"fedapp reproduce {cell.paper} {cell.table} --cell '{cell.name}' --seeds 1"
    command += f" --dataset-as {request.dataset_as}" if request.dataset_as else ""
    command += f" --scale {request.scale:g}" if request.scale != 1 else ""
    return {
        "paper": cell.paper, "table": cell.table, "cell": cell.name, "changes": request.label(),
        "published": cell.row.mean, "published std": cell.row.std,
        "command": f"{command} --data-dir DIR",
    }  # fmt: skip


def _partition(keys: Mapping[str, Any]) -> str:
    kind = keys["partition"]
    size = {"shards": keys["shards"], "pathological": keys["classes-per-client"]}
    return f"{kind} {size[kind] if kind in size else keys['alpha']}"


def _cell_of(name: str, keys: Mapping[str, Any]) -> Cell | None:
    """Return the published cell that a run directory of `fedapp reproduce` is named after."""
    for paper in all_papers():
        for table in paper.tables:
            if not name.startswith(folder_name(f"{paper.name}-{table.id}-")):
                continue
            for cell in cells_of(paper, table):
                if cell.config is not None:
                    planned = PlannedRun(cell, keys["seed"], _request(cell, keys))
                    if planned.name == name:
                        return cell
    return None


def _request(cell: Cell, keys: Mapping[str, Any]) -> Request:
    assert cell.config is not None
    same = keys["dataset"] == cell.config["dataset"]
    scale = min(keys["num-rounds"] / cell.config["num-rounds"], 1.0)
    return Request(Path(), scale=scale, dataset_as="" if same else keys["dataset"])


def _percent(fraction: float | None) -> str:
    return "" if fraction is None else f"{100 * fraction:.2f}"


def _forgetting(rows: Sequence[Mapping[str, Any]]) -> str:
    known = [row["class_accuracy"] for row in rows if row.get("class_accuracy")]
    return f"{forgetting(np.array(known, float)):.3f}" if len(known) > 1 else ""


def _round_lines(run: RunDirectory) -> Iterator[Line]:
    rows = [row for row in run.rounds() if row["accuracy"] is not None]
    for number, row in enumerate(rows, 1):
        yield {
            "run": run.path.name,
            "round": row["round"],
            "accuracy %": _percent(row["accuracy"]),
            "loss": f"{row['loss']:.4f}" if row["loss"] is not None else "",
            "train loss": f"{row['train_loss']:.4f}" if row["train_loss"] is not None else "",
            "forgetting": _forgetting(rows[:number]),
            "seconds": f"{row['seconds']:.1f}",
        }


def write() -> None:
    """Draw the curves of every table, and fill the tables of the pages that are marked."""
    runs = [line for line in read("runs.csv") if line["paper"]]
    curves = _curves()
    for title, lines in _grouped(runs, _panel).items():
        cells = _grouped(lines, lambda line: line["cell"])
        figure = published_beside_curves(
            {cell: [curves[line["run"]] for line in of_cell] for cell, of_cell in cells.items()},
            {cell: float(of_cell[0]["published"]) for cell, of_cell in cells.items()},
            title,
        )
        write_atomically(IMAGES / picture_name(title), png(figure))
    for page in PAGES:
        page.write_text(filled(page.read_text("utf-8"), runs), "utf-8")


def _grouped(lines: Sequence[Record], key: Callable[[Record], str]) -> dict[str, list[Record]]:
    groups: dict[str, list[Record]] = defaultdict(list)
    for line in lines:
        groups[key(line)].append(line)
    return dict(groups)


def _panel(line: Record) -> str:
    """Return what runs that are drawn together share: all but the method."""
    return f"{line['paper']} {line['table']} {line['cell'].partition(' ')[2]}"


def picture_name(title: str) -> str:
    """Return the file of a picture with this title."""
    return f"evidence-{title.replace(' ', '-').replace('=', '')}.png"


def _curves() -> dict[str, list[tuple[int, float]]]:
    curves = defaultdict(list)
    for line in read("rounds.csv"):
        curves[line["run"]].append((int(line["round"]), float(line["accuracy %"])))
    return curves


def filled(text: str, runs: Sequence[Record]) -> str:
    """Return a page, the table after each mark `<!-- evidence: PAPER TABLE -->` written anew."""

    def table(mark: re.Match[str]) -> str:
        place = (mark[2], mark[3])
        lines = [line for line in runs if (line["paper"], line["table"]) == place]
        return f"{mark[1]}\n{published_beside_ours(*place, lines)}\n{mark[4]}"

    pattern = r"(<!-- evidence: (\S+) (\S+) -->)\n.*?(<!-- end -->)"
    return re.sub(pattern, table, text, flags=re.S)


def published_beside_ours(paper: str, table: str, lines: Sequence[Record]) -> str:
    """Return a Markdown table: a row per cell, its seeds together."""
    cells = _grouped(lines, lambda line: line["cell"])
    forgotten = _published_forgetting(paper, table)
    columns = ["cell", "published", "ours", "difference", "best", "seeds", "rounds", "hours"]
    columns += ["published forgetting", "forgetting"] if forgotten else []
    names = [name for name in cell_names(find_paper(paper).table(table)) if name in cells]
    rows = []
    for name in names:
        row = _row(name, cells[name])
        if forgotten:
            mean = statistics.mean(float(line["forgetting"]) for line in cells[name])
            row += [str(forgotten.get(name, "-")), f"{mean:.2f}"]
        rows.append(row)
    return "\n".join(markdown_table(columns, rows))


def _published_forgetting(paper: str, table: str) -> dict[str, float | None]:
    tables = {found.id: found for found in find_paper(paper).tables}
    other = tables.get(f"{table}-forgetting")
    if other is None:
        return {}
    return {name: row.mean for name, row in zip(cell_names(other), other.rows, strict=True)}


def _row(name: str, lines: Sequence[Record]) -> list[str]:
    values = [float(line["final %"]) for line in lines]
    whole = all(line["status"] == "completed" for line in lines)
    published, mean = float(lines[0]["published"]), statistics.mean(values)
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    done = ", ".join(line["done"] for line in lines)
    return [
        name,
        f"{published:g}" + (f" ± {lines[0]['published std']}" if lines[0]["published std"] else ""),
        f"{mean:.2f}{spread}" + ("" if whole else " so far"),
        f"{mean - published:+.2f}" if whole else "-",
        f"{statistics.mean(float(line['best %']) for line in lines):.2f}",
        " ".join(line["seed"] for line in lines),
        lines[0]["rounds"] if whole else f"{done} of {lines[0]['rounds']}",
        f"{sum(float(line['hours']) for line in lines):.1f}",
    ]


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    commands = parser.add_subparsers(dest="command", required=True)
    adding = commands.add_parser("collect", help="add run directories to docs/evidence/*.csv")
    adding.add_argument("folders", type=Path, nargs="+")
    adding.add_argument("--commit", required=True, help="of the code that trained them")
    adding.add_argument("--hardware", required=True)
    commands.add_parser("write", help="draw the pictures and fill the tables")
    options = parser.parse_args()
    if options.command == "collect":
        collect(options.folders, options.commit, options.hardware)
    else:
        write()


if __name__ == "__main__":
    main()
