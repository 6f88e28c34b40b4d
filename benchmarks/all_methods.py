"""Train all methods with a global model on the same CIFAR-10 job and print one table.

    python benchmarks/all_methods.py FOLDER [--rounds 12] [--lr 0.01] [--jobs 2] [--only A,B]

FOLDER holds train/CLASS/*.jpg and test/CLASS/*.jpg. 100 clients, 10 per round, the small CNN, two
shards per client and LDA 0.1. Every run is one process with one thread. Repeat an interrupted
command to train the missing runs. Prints Markdown, and writes it to OUTPUT/table.md.

The job is short: one local epoch with batches of 10 has as many local steps as the papers' five
epochs with batches of 50, at a fifth of the cost.
"""

import argparse
import inspect
import json
from functools import partial
from pathlib import Path

from runs_in_turn import in_turn, markdown, rounds, summary, train

from clients.base import LocalClient
from fedapp.methods.row import GLOBAL
from fedapp.methods.table import METHODS
from strategies.fedavg import FedAvg

PARTITIONS = {"s=2": "partition='shards' shards=2", "LDA 0.1": "partition='lda' alpha=0.1"}
BASE = (
    "dataset='images' model='cnn' num-clients=100 participation=0.1 device='cpu' "
    "lr-schedule='exponential' analyses='forgetting' keep-state=true"
)
# Losses on normalised features have small gradients, so they need a multiple of FedAvg's rate.
RATES = {"spherefed": 10.0, "spherefed-ce": 3.0}
COLUMNS = (
    "accuracy",
    "mean of last 3",
    "forgetting",
    "fastest round, s",
    "MB up",
    "MB down",
    "state MB",
)


def run(job: tuple[str, str], options: argparse.Namespace) -> None:
    """Train one method on one partition, unless the run exists."""
    method, partition = job
    rate = RATES.get(method, 1.0) * options.lr
    train(
        options.output,
        name_of(job),
        f"{BASE} {PARTITIONS[partition]} method='{method}' data-dir='{options.folder.absolute()}' "
        f"num-rounds={options.rounds} local-epochs={options.epochs} seed={options.seed} "
        f"batch-size={options.batch_size} lr={rate:g} eval-every={options.eval_every} "
        f"state-dir='{options.output.absolute() / 'states'}'",
    )


def name_of(job: tuple[str, str]) -> str:
    """Return the name of a run."""
    return "-".join(job).replace("=", "").replace(" ", "-")


def figures(folder: Path, states: Path) -> list[str]:
    """Return one method's figures on one partition, as text."""
    found = summary(folder)
    if found.get("status") != "completed":
        why = found.get("reason", "not run") or found["status"]
        return [why.removeprefix("fedapp: "), *[""] * 6]
    rows = rounds(folder)
    accuracies = [row["accuracy"] for row in rows if row["accuracy"] is not None][-3:]
    # a round's seconds include the evaluation, so prefer rounds without one
    seconds = min(row["seconds"] for row in [r for r in rows if r["accuracy"] is None] or rows)
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
    """Return the lines of the method's own client and strategy classes, plus 1 for its row."""
    own = {METHODS[method].client.kind, METHODS[method].server.kind} - {LocalClient, FedAvg}
    return 1 + sum(len(inspect.getsource(cls).splitlines()) for cls in own)


def main() -> None:
    """Train the missing runs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=10)
    parser.add_argument(
        "--lr",
        type=float,
        default=0.01,
        help="learning rate of FedAvg; RATES has factors of methods",
    )
    parser.add_argument("--eval-every", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="method names, separated by commas")
    parser.add_argument("--output", type=Path, default=Path("runs/all-methods"))
    options = parser.parse_args()
    # centralised training has no partition, and ten times the images per round
    methods = [name for name, row in METHODS.items() if row.accuracy == GLOBAL]
    methods = [name for name in methods if METHODS[name].fixed.get("num_clients") != 1]
    methods = [m for m in methods if not options.only or m in options.only.split(",")]
    jobs = [(method, partition) for method in methods for partition in PARTITIONS]
    in_turn(partial(run, options=options), jobs, options.jobs)
    lines = []
    for method, partition in jobs:
        row = figures(options.output / name_of((method, partition)), options.output / "states")
        lines.append([f"`{method}`", partition, *row, str(lines_of_code(method))])
    table = markdown(["method", "partition", *COLUMNS, "lines of code"], lines)
    (options.output / "table.md").write_text(table)
    print(table)


if __name__ == "__main__":
    main()
