"""Personalised accuracies of all methods on CIFAR-10 images, as one table.

    python benchmarks/personalised.py FOLDER RUNS [--rounds 12] [--jobs 2] [--only A,B]

RUNS is the output folder of `all_methods.py`. The methods X-ft fine-tune its models for one epoch
at the first round's rate. Methods that train personalised models have the same clients, rounds and
rates; clients that train alone train --local-epochs epochs. Every client is tested on its own split
of the test set.
"""

import argparse
import json
from pathlib import Path

from all_methods import BASE, PARTITIONS, RATES, name_of
from runs_in_turn import fedapp, in_turn, markdown, rounds, summary, train

from fedapp.methods.row import CLIENT_MEAN
from fedapp.methods.table import METHODS

COLUMNS = ("mean", "std of clients", "worst", "quartiles", "global model")
EXTRA = {"per-fedavg": "per-fedavg-beta=0.01"}  # at its own 0.1, this CNN diverges
Job = tuple[str, str]


def fine_tune(job: Job, options: argparse.Namespace) -> None:
    """Fine-tune the model of a finished run on every client, unless the result exists."""
    method, partition = job
    global_method = method.removesuffix("-ft")
    folder = options.runs / name_of((global_method, partition))
    rate = RATES.get(global_method, 1.0) * options.lr
    keys = f"finetune-epochs={options.epochs} finetune-lr={rate:g}"
    done = folder / "personal.keys"  # of an earlier call
    if done.exists() and done.read_text() == keys:
        return
    for old in (done, folder / "personal.json"):
        old.unlink(missing_ok=True)
    log = options.output / f"{name_of(job)}.log"
    fedapp(["personalise", str(folder), "-c", keys], log)
    if (folder / "personal.json").exists():
        done.write_text(keys)
    print(f"{name_of(job)}: {'done' if done.exists() else log.read_text()[-300:]}", flush=True)


def train_personal(job: Job, options: argparse.Namespace) -> None:
    """Train a method with personalised models, unless the run exists."""
    method, partition = job
    alone = METHODS[method].exchange.sends == "nothing"
    count, participation = (options.local_epochs, 1.0) if alone else (options.rounds, 0.1)
    base = BASE.replace("participation=0.1", f"participation={participation}")
    base = base.replace("analyses='forgetting'", "")
    train(
        options.output,
        name_of(job),
        f"{base} {PARTITIONS[partition]} method='{method}' "
        f"data-dir='{options.folder.absolute()}' num-rounds={count} local-epochs={options.epochs} "
        f"batch-size=10 lr={options.lr:g} eval-every={count} {EXTRA.get(method, '')} "
        f"state-dir='{options.output.absolute() / 'states'}'",
    )


def figures(job: Job, options: argparse.Namespace) -> list[str]:
    """Return one table row as text: the accuracies of all clients in percent."""
    method, partition = job
    if METHODS[method].fine_tuned:
        folder = options.runs / name_of((method.removesuffix("-ft"), partition))
        file = folder / "personal.json"
        found = json.loads(file.read_text()) if file.exists() else {}
        before = summary(folder).get("accuracy_final")
    else:
        folder, before = options.output / name_of(job), None
        found = rounds(folder)[-1] if summary(folder).get("status") == "completed" else {}
    if not found:
        return [f"not run: {summary(folder).get('reason', '')}", *[""] * 4]
    keys = ("client_accuracy_mean", "client_accuracy_std", "client_accuracy_worst")
    quartiles = " / ".join(f"{100 * value:.1f}" for value in found["client_accuracy_quartiles"])
    ends = [quartiles, f"{100 * before:.1f}" if before is not None else "none"]
    return [f"{100 * found[key]:.1f}" for key in keys] + ends


def main() -> None:
    """Train the missing runs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", type=Path)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--local-epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", help="method names, separated by commas")
    parser.add_argument("--output", type=Path, default=Path("runs/personalised"))
    options = parser.parse_args()
    chosen = options.only.split(",") if options.only else list(METHODS)
    methods = [
        method
        for method, row in METHODS.items()
        if method in chosen and row.accuracy == CLIENT_MEAN and row.heterogeneous is None
    ]
    jobs = [(method, partition) for method in methods for partition in PARTITIONS]
    options.output.mkdir(parents=True, exist_ok=True)

    def work(job: Job) -> None:
        (fine_tune if METHODS[job[0]].fine_tuned else train_personal)(job, options)

    in_turn(work, jobs, options.jobs)
    rows = [[f"`{job[0]}`", job[1], *figures(job, options)] for job in jobs]
    table = markdown(["method", "partition", *COLUMNS], rows)
    (options.output / "table.md").write_text(table)
    print(table)


if __name__ == "__main__":
    main()
