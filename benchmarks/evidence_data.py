"""The runs of published tables as lines of docs/evidence/runs.csv and rounds.csv."""

import csv
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from fedapp.core.paths import folder_name
from fedapp.experiments.papers.cells import Cell, cells_of
from fedapp.experiments.papers.metrics import OWN_IMAGES
from fedapp.experiments.papers.plan import PlannedRun, Request, config_option
from fedapp.experiments.papers.tables import all_papers
from fedapp.methods.table import METHODS
from fedapp.results.class_accuracy import forgetting
from fedapp.results.run_directory import RunDirectory

DATA = Path(__file__).parents[1] / "docs" / "evidence"
RUN_COLUMNS = (
    "run", "paper", "table", "cell", "changes", "published", "published std", "method", "dataset",
    "model", "partition", "lr", "local epochs", "rounds", "done", "status", "seed", "final %",
    "best %", "own images %", "forgetting", "hours", "hardware", "commit", "date", "command",
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
    """Return the lines of a file of docs/evidence; none if the file does not exist."""
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
        "model": keys["model-group" if METHODS[keys["method"]].heterogeneous else "model"],
        "partition": _partition(keys),
        "lr": f"{keys['lr']:g}",
        "local epochs": keys["local-epochs"],
        "rounds": keys["num-rounds"],
        "done": run.rounds()[-1]["round"],
        "status": summary.get("status", "unfinished"),
        "seed": keys["seed"],
        "final %": _percent(last),
        "best %": _percent(max((row["accuracy"] for row in rows), default=None)),
        "own images %": _own_images(cell, summary),
        "forgetting": _forgetting(rows),
        "hours": _hours(run.rounds()),
    }
    return line | (_published(cell, run.path.name, keys) if cell else {})


def _own_images(cell: Cell | None, summary: Mapping[str, Any]) -> str:
    """Return the accuracy on each client's own images, if `fedapp reproduce` compares it."""
    compared = cell is not None and cell.measure.endswith(OWN_IMAGES)
    return _percent(summary.get("client_accuracy_mean") if compared else None)


def _published(cell: Cell, name: str, keys: Mapping[str, Any]) -> Line:
    request = _request(cell, name, keys)
    command = f"fedapp reproduce {cell.paper} {cell.table} --cell '{cell.name}'"
    command += f" --seeds {keys['seed']}"
    command += f" --dataset-as {request.dataset_as}" if request.dataset_as else ""
    command += f" --scale {request.scale:g}" if request.scale != 1 else ""
    command += f" {config_option(request.changes)}" if request.changes else ""
    return {
        "paper": cell.paper, "table": cell.table, "cell": cell.name, "changes": request.label(),
        "published": cell.row.mean, "published std": cell.row.std,
        "command": f"{command} --data-dir DIR",
    }  # fmt: skip


def _partition(keys: Mapping[str, Any]) -> str:
    kind = keys["partition"]
    size = {
        "shards": keys["shards"],
        "pathological": keys["classes-per-client"],
        "file": Path(keys.get("partition-file", "")).name,
    }
    return f"{kind} {size[kind] if kind in size else keys['alpha']}"


def _cell_of(name: str, keys: Mapping[str, Any]) -> Cell | None:
    """Return the published cell that belongs to a run directory of `fedapp reproduce`."""
    for paper in all_papers():
        for table in paper.tables:
            if not name.startswith(folder_name(f"{paper.name}-{table.id}-")):
                continue
            for cell in cells_of(paper, table):
                if cell.config is not None:
                    planned = PlannedRun(cell, keys["seed"], _request(cell, name, keys))
                    if planned.name == name:
                        return cell
    return None


def _request(cell: Cell, name: str, keys: Mapping[str, Any]) -> Request:
    """Return the request that made a run of this cell; its name lists the keys changed by -c.

    Whole numbers are read from the name: a resumed run may have another eval-every than at first.
    """
    assert cell.config is not None
    same = keys["dataset"] == cell.config["dataset"]
    scale = min(keys["num-rounds"] / cell.config["num-rounds"], 1.0)
    changed = dict(re.findall(r"(?:^|[+])([a-z0-9-]+)=(\d*)", name.partition("-with-")[2]))
    return Request(
        Path(), scale=scale, dataset_as="" if same else keys["dataset"],
        changes={
            key: int(text) if text and type(keys[key]) is int else keys[key]
            for key, text in changed.items()
        },
    )  # fmt: skip


def _hours(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the time of all rounds at the median's speed: some waited for other programs."""
    return f"{len(rows) * statistics.median(row['seconds'] for row in rows) / 3600:.2f}"


def _percent(fraction: float | None) -> str:
    return "" if fraction is None else f"{100 * fraction:.2f}"


def _forgetting(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the forgetting if every round was tested: with fewer tests it is smaller."""
    if rows and rows[-1]["round"] > len(rows):
        return ""
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
