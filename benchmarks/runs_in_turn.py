"""Functions that the benchmarks share: start runs as processes, and read their results."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fedapp.results.formatting import markdown_table

START = "from fedapp.cli.app import main; main()"


def fedapp(arguments: Sequence[str], log: Path) -> int:
    """Run one command of the app; its output goes to `log`. Returns its peak memory in bytes."""
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", START, *arguments], stdout=output, stderr=subprocess.STDOUT
        )
        _, _, usage = os.wait4(process.pid, 0)
    return usage.ru_maxrss * 1024


def train(output: Path, name: str, keys: str, nodes: int = 1) -> None:
    """Train one run in a process, unless it has ended with the same keys, and print its result."""
    folder = output / name
    found = summary(folder)
    if found.get("keys") == keys and found.get("status") != "interrupted":
        return
    shutil.rmtree(folder, ignore_errors=True)
    output.mkdir(parents=True, exist_ok=True)
    values = f"{keys} run-name='{name}' output-dir='{output.absolute()}'"
    log = output / f"{name}.log"
    peak = fedapp(["run", "--engine", "in-process", "--nodes", str(nodes), "-c", values], log)
    usage: dict[str, Any] = {"keys": keys, "peak_memory": peak}
    if not summary(folder):
        folder.mkdir(exist_ok=True)
        usage |= {"status": "refused", "reason": log.read_text().strip()[-300:]}
    (folder / "usage.json").write_text(json.dumps(usage))
    print(f"{name}: {summary(folder)}"[:300], flush=True)


def in_turn(work: Callable[[Any], None], jobs: Iterable[Any], at_once: int) -> None:
    """Do all jobs, `at_once` at a time."""
    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(work, jobs))


def summary(folder: Path) -> dict[str, Any]:
    """Return a run's summary and peak memory, empty if it has none."""
    found: dict[str, Any] = {}
    for name in ("summary.json", "usage.json"):
        if (folder / name).exists():
            found |= json.loads((folder / name).read_text())
    return found


def rounds(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of a run's rounds."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    return "\n".join(markdown_table(columns, rows)) + "\n"
