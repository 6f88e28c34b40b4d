"""All methods with one model for all, on the same job of real CIFAR-10 images, as one table.

    python benchmarks/all_methods.py FOLDER [--rounds 10] [--epochs 1] [--jobs 2] [--only A,B]

FOLDER holds train/CLASS/*.jpg and test/CLASS/*.jpg. 100 clients, 10 per round, the small CNN, two
shards per client and LDA 0.1. Every run is one process with one thread; an interrupted table goes
on with the runs that are not complete. Prints Markdown, and writes it to OUTPUT/table.md.
"""

import argparse
import inspect
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from clients.client import LocalClient
from fedapp.method import GLOBAL
from fedapp.methods import METHODS
from strategies.fedavg import FedAvg

PARTITIONS = {"s=2": "partition='shards' shards=2", "LDA 0.1": "partition='lda' alpha=0.1"}
BASE = (
    "dataset='images' model='cnn' num-clients=100 participation=0.1 batch-size=50 device='cpu' "
    "lr-schedule='exponential' analyses='forgetting' eval-every=1 keep-state=true"
)
COLUMNS = (
    "accuracy",
    "mean of last 3",
    "forgetting",
    "s per round",
    "MB up",
    "MB down",
    "state MB",
)


def command(name: str, method: str, partition: str, options: argparse.Namespace) -> list[str]:
    """Return the command of one run."""
    values = (
        f"{BASE} {PARTITIONS[partition]} method='{method}' data-dir='{options.folder.absolute()}' "
        f"num-rounds={options.rounds} local-epochs={options.epochs} run-name='{name}' "
        f"output-dir='{options.output.absolute()}' "
        f"state-dir='{options.output.absolute() / 'states'}'"
    )
    start = "from fedapp.cli import main; main()"
    return [sys.executable, "-c", start, "run", "--in-process", "-c", values]


def run(job: tuple[str, str], options: argparse.Namespace) -> None:
    """Train one method on one partition, unless that is done."""
    method, partition = job
    name = f"{method}-{partition.replace('=', '').replace(' ', '-')}"
    folder = options.output / name
    if summary(folder).get("status"):
        return
    subprocess.run(["rm", "-rf", str(folder)], check=True)
    done = subprocess.run(
        command(name, method, partition, options), capture_output=True, text=True, check=False
    )
    print(f"{name}: {summary(folder).get('accuracy_final')} {done.stderr[-300:]}", flush=True)


def summary(folder: Path) -> dict[str, Any]:
    """Return a run's summary, empty if it has none."""
    file = folder / "summary.json"
    return json.loads(file.read_text()) if file.exists() else {}


def figures(folder: Path, states: Path) -> list[str]:
    """Return one method's figures on one partition, as text."""
    found = summary(folder)
    if found.get("status") != "completed":
        return [f"{found.get('status', 'not run')}: {found.get('reason', '')}"[:60], *[""] * 6]
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    accuracies = [row["accuracy"] for row in rows][-3:]
    seconds = sorted(row["seconds"] for row in rows)[len(rows) // 2]
    key = json.loads((folder / "state.json").read_text())["state_key"]
    kept = sum(file.stat().st_size for file in (states / key).glob("*/personal.safetensors"))
    return [
        f"{100 * found['accuracy_final']:.1f}",
        f"{100 * sum(accuracies) / len(accuracies):.1f}",
        f"{found['forgetting']:.2f}",
        f"{seconds:.1f}",
        f"{rows[-1]['client_bytes_up'] / 1e6:.1f}",
        f"{rows[-1]['bytes_down'] / 1e6:.1f}",
        f"{kept / 1e6:.0f}",
    ]


def lines_of_code(method: str) -> int:
    """Return the lines of the classes that only this kind of method has, and 1 for its row."""
    own = {METHODS[method].client, METHODS[method].strategy} - {LocalClient, FedAvg}
    return 1 + sum(len(inspect.getsource(cls).splitlines()) for cls in own)


def main() -> None:
    """Run what is missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", help="method names, separated by commas")
    parser.add_argument("--output", type=Path, default=Path("runs/all-methods"))
    options = parser.parse_args()
    methods = [m for m, row in METHODS.items() if row.accuracy == GLOBAL]
    methods = [m for m in methods if not options.only or m in options.only.split(",")]
    jobs = [(method, partition) for method in methods for partition in PARTITIONS]
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(lambda job: run(job, options), jobs))
    lines = [["method", "partition", *COLUMNS, "lines of code"], ["---"] * (len(COLUMNS) + 3)]
    for method, partition in jobs:
        folder = options.output / f"{method}-{partition.replace('=', '').replace(' ', '-')}"
        row = figures(folder, options.output / "states")
        lines.append([f"`{method}`", partition, *row, str(lines_of_code(method))])
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    (options.output / "table.md").write_text(table + "\n")
    print(table)


if __name__ == "__main__":
    main()
