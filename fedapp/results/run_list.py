"""The runs below a folder, those of sweeps included, one row each.

A folder may have runs of other versions, damaged ones and folders of other programs. A damaged run
has a row that says what is damaged; a folder without the files of a run is left out.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedapp.core.errors import UserError, printable, unknown
from fedapp.core.paths import expanded
from fedapp.data.partition.table import PARTITIONS
from fedapp.results.folders import CHECKPOINTS, is_in_use, readable
from fedapp.results.formatting import MISSING, age, percent, status
from fedapp.results.run_directory import RunDirectory, Scalar

_CONFIG, _ROUNDS, _SUMMARY = "config.toml", "metrics.jsonl", "summary.json"
_OF_CONFIG = ("method", "dataset", "partition", "seed", "num_rounds")
_OF_STATE = ("status", "reason", "rounds", "accuracy_final")
_OF_A_RUN = (_ROUNDS, _SUMMARY, CHECKPOINTS)  # beside config.toml, which other programs have, too
_DAMAGED, _RUNNING, _UNFINISHED = "damaged", "running", "unfinished"


@dataclass(frozen=True)
class ListedRun:
    """A run below a folder.

    Attributes:
        directory: its run directory.
        figures: "run" (the path below the folder), "method", "dataset", "partition", "seed",
            "status" (that of summary.json; without one "running" or "unfinished"; "damaged"),
            "reason" (of the status), "rounds" (finished), "num_rounds" (planned),
            "accuracy_final" (a fraction) and "age" (seconds since its files last changed); None
            where it is not known.
    """

    directory: RunDirectory
    figures: dict[str, Any] = field(compare=False)

    @property
    def damaged(self) -> bool:
        """Whether one of the run's files cannot be read."""
        return bool(self.figures["status"] == _DAMAGED)


def _by_final(run: ListedRun) -> float:
    final = run.figures["accuracy_final"]
    return 1.0 if final is None else -float(final)


ORDERS: dict[str, Callable[[ListedRun], Any]] = {
    "age": lambda run: run.figures["age"],  # the last changed first
    "final": _by_final,  # the best first
    "method": lambda run: str(run.figures["method"] or ""),
}


def runs_below(folder: str | Path, order: str = "age") -> list[ListedRun]:
    """Return the runs in a folder and below it; equal ones are in the order of their paths.

    Raises:
        UserError: `folder` is not a folder, or `order` is none of `ORDERS`.
    """
    if order not in ORDERS:
        raise unknown("the order", str(order), ORDERS)
    top = expanded(folder, "the folder of runs").resolve()
    if not top.is_dir():
        raise UserError(f"{top} is not a folder; give the folder that has the runs")
    now = time.time()
    found = [_listed(path, top, now) for path in sorted(_folders(top))]
    return sorted(found, key=ORDERS[order])


def table_row(run: ListedRun) -> dict[str, Any]:
    """Return a run as text."""
    row = run.figures
    planned = MISSING if row["num_rounds"] is None else row["num_rounds"]
    return {
        **{key: row[key] for key in ("run", "method")},
        "data set": row["dataset"],
        **{key: row[key] for key in ("partition", "seed")},
        "status": status(row),
        "rounds": None if row["rounds"] is None else f"{row['rounds']}/{planned}",
        "final": percent(row["accuracy_final"]),
        "age": age(row["age"]),
    }


def _folders(top: Path) -> Iterator[Path]:
    """Yield the run directories in and below a folder, of linked folders too, each of them once."""
    seen = set()
    for here, inside, files in os.walk(top, followlinks=True):
        path, real = Path(here), os.path.realpath(here)
        inside[:] = sorted(name for name in inside if not name.startswith("."))
        if real in seen:
            inside.clear()
        elif _CONFIG in files and _is_run(path):
            inside.clear()
            yield path
        seen.add(real)


def _is_run(path: Path) -> bool:
    """Return whether a folder with a config.toml is a run's, perhaps a damaged one's."""
    try:
        return any((path / name).exists() for name in _OF_A_RUN) or bool(
            RunDirectory(path).config()
        )
    except (UserError, OSError):
        return False


def _listed(path: Path, top: Path, now: float) -> ListedRun:
    run = RunDirectory(path)
    changed = [_changed(path / name) for name in (_CONFIG, _ROUNDS, _SUMMARY)]
    name = path.name if path == top else path.relative_to(top)
    figures: dict[str, Any] = {"run": printable(name)}
    damages = []
    for file, keys, read in (_CONFIG, _OF_CONFIG, _settings), (_SUMMARY, _OF_STATE, _state):
        figures |= dict.fromkeys(keys)
        try:
            with readable(path):
                figures |= read(run)
        except (UserError, OSError) as error:
            damages.append(_sentence(error, path, file))
    if damages:
        figures |= {"status": _DAMAGED, "reason": "; ".join(damages)}
    return ListedRun(run, {**figures, "age": max(0.0, now - max(changed))})


def _settings(run: RunDirectory) -> dict[str, Any]:
    config = run.config()
    planned = config.get("num-rounds")
    return {
        "method": str(config["method"]),
        "dataset": config.get("dataset"),
        "partition": _partition(config),
        "seed": config.get("seed"),
        "num_rounds": None if planned is None else int(planned),
    }


def _state(run: RunDirectory) -> dict[str, Any]:
    summary = run.summary()
    final = summary.get("accuracy_final")
    waiting = "" if summary.get("status") else _RUNNING if is_in_use(run.path) else _UNFINISHED
    done = summary.get("rounds")
    return {
        "status": waiting or str(summary["status"]),
        "reason": summary.get("reason"),
        "rounds": len(run.rounds()) if done is None else int(done),
        "accuracy_final": None if final is None else float(final),
    }


def _partition(config: Mapping[str, Scalar]) -> str | None:
    """Return a partition with its main parameter: "lda alpha=0.1", or "shards=2"."""
    name = config.get("partition")
    key = PARTITIONS[name].key if name in PARTITIONS else ""
    if not key or key not in config:
        return None if name is None else str(name)
    return f"{key}={config[key]}" if key == name else f"{name} {key}={config[key]}"


def _changed(file: Path) -> float:
    """Return when a file last changed, in seconds since the epoch; 0 without the file."""
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def _sentence(error: Exception, path: Path, file: str) -> str:
    """Return what is wrong with a run's file, without the path that its row has anyway."""
    text = str(error)
    if isinstance(error, OSError):
        text = f"{error.filename or path} cannot be read: {error.strerror or error}"
    text = text.replace(f"a file of {path}", file).replace(f"{path}{os.sep}", "")
    return printable(text).removesuffix(".")
