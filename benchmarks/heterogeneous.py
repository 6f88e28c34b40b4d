"""Train all methods with a model per client on the same job: one table and one plot.

    python benchmarks/heterogeneous.py [FOLDER] [--rounds 12] [--seeds 0,1,2] [--only A,B]

20 clients, all in every round, on Dirichlet 0.1 and on two classes per client. FOLDER holds
train/CLASS/*.jpg and test/CLASS/*.jpg; --images-per-class limits their number. Without FOLDER the
data are the built-in digits. Every client has its own node, so traffic is that of real hosts. Every
run is one process with one thread. Repeat an interrupted command to train the missing runs.

OUTPUT/rounds.csv has a line for every run and evaluated round.

With several rates in --lr every method trains with each rate and the first seed (grid.md), and
with its best rate and the other seeds. The longer job, with four architectures:

    python benchmarks/heterogeneous.py FOLDER --group small --rounds 100 --batch-size 32
        --lr 0.003,0.01,0.03 --seeds 0,1,2 --eval-every 10 --precision bf16
        --partitions "Dirichlet 0.1"
"""

import argparse
import shutil
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from statistics import mean, median, pstdev
from typing import Any, NamedTuple

from runs_in_turn import fedapp, in_turn, markdown, rounds, summary, train

from fedapp.experiments.csv_table import write_table as write_csv
from fedapp.methods.table import METHODS

PARTITIONS = {
    "Dirichlet 0.1": "partition='dirichlet' alpha=0.1",
    "2 classes": "partition='pathological' classes-per-client=2",
}
OWN_MODELS = [method for method, row in METHODS.items() if row.heterogeneous is not None]
BASE = "num-clients=20 participation=1.0 device='cpu' checkpoint-every=0"
COLUMNS = (
    "best",
    "final",
    "by nearest prototype",
    "cosine of prototypes",
    "std of clients",
    "kB per round",
    "s per round",
    "peak MB",
)
ROUND_FIGURES = ("accuracy %", *COLUMNS[2:4])
OF_PROTOTYPES = ("client_accuracy_proto_total", "prototype_cosine_mean")


class Job(NamedTuple):
    """One run."""

    method: str
    partition: str
    lr: float
    seed: int

    @property
    def name(self) -> str:
        """The name of its directory."""
        partition = self.partition.replace(" ", "-")
        return f"{self.method}-{partition}-lr{self.lr:g}-seed{self.seed}"


def subset(folder: Path, per_class: int, target: Path) -> Path:
    """Link the first images of each class to `target`, anew; a seventh of them for tests."""
    shutil.rmtree(target, ignore_errors=True)
    for part, count in (("train", per_class - per_class // 7), ("test", per_class // 7)):
        for source in sorted(path for path in (folder / part).iterdir() if path.is_dir()):
            place = target / part / source.name
            place.mkdir(parents=True, exist_ok=True)
            for image in sorted(source.iterdir())[:count]:
                (place / image.name).symlink_to(image.absolute())
    return target


def run(job: Job, options: argparse.Namespace, data: str) -> None:
    """Train one method on one partition with one rate and seed, unless the run exists."""
    width = f"feature-dim={options.feature_dim} " if options.feature_dim else ""
    train(
        options.output,
        job.name,
        f"{BASE} {data} {PARTITIONS[job.partition]} method='{job.method}' seed={job.seed} "
        f"lr={job.lr!r} model-group='{options.group}' {width}batch-size={options.batch_size} "
        f"num-rounds={options.rounds} eval-every={options.eval_every} "
        f"precision='{options.precision}' {options.keys}",
        nodes=20,
    )


def best_rate(output: Path, jobs: Iterable[Job]) -> float:
    """Return the rate of the job with the best accuracy."""
    found = {job.lr: summary(output / job.name).get("accuracy_best") for job in jobs}
    return max(found, key=lambda lr: -1.0 if found[lr] is None else found[lr])  # failed: the worst


def figures(folders: list[Path]) -> list[str]:
    """Return the figures of one method on one partition, of all its seeds, as text."""
    found = [summary(folder) for folder in folders]
    if any(one.get("status") != "completed" for one in found):
        return [str(one.get("reason", "not run"))[:60] for one in found][:1] + [""] * 7
    rows = [row for folder in folders for row in rounds(folder)]
    last = [rounds(folder)[-1] for folder in folders]
    near, alike = ([row.get(key) for row in last] for key in OF_PROTOTYPES)
    return [
        percent([one["accuracy_best"] for one in found]),
        percent([one["accuracy_final"] for one in found]),
        "-" if None in near else percent(near),
        "-" if None in alike else f"{mean(alike):.2f}",
        f"{100 * mean(row['client_accuracy_std'] for row in last):.1f}",
        f"{mean(row['bytes_up'] + row['bytes_down'] for row in rows) / 1e3:,.0f}",
        f"{median(row['seconds'] for row in rows):.1f}",
        f"{max(one['peak_memory'] for one in found) / 1e6:.0f}",
    ]


def percent(values: list[float]) -> str:
    """Return a mean in percent, with the standard deviation of several seeds."""
    text = f"{100 * mean(values):.1f}"
    return text if len(values) == 1 else f"{text} ± {100 * pstdev(values):.1f}"


def row_of(output: Path, jobs: list[Job]) -> list[str]:
    """Return the table row of jobs that differ in the seed only."""
    figured = figures([output / job.name for job in jobs])
    return [f"`{jobs[0].method}`", jobs[0].partition, f"{jobs[0].lr:g}", *figured]


def write_table(path: Path, rows: list[list[str]]) -> str:
    """Write the rows of a table; returns it."""
    table = markdown(["method", "partition", "lr", *COLUMNS], rows)
    path.write_text(table)
    return table


def write_rounds(path: Path, jobs: Iterable[Job]) -> None:
    """Write a line for every job and evaluated round, with accuracies in percent."""
    folders = {job: path.parent / job.name for job in jobs}
    lines = [
        {**job._asdict(), "round": row["round"], **round_figures(row)}
        for job, folder in folders.items()
        if summary(folder).get("status") == "completed"
        for row in rounds(folder)
        if row["accuracy"] is not None
    ]
    write_csv(path, lines, [*Job._fields, "round", *ROUND_FIGURES])


def round_figures(row: dict[str, Any]) -> dict[str, str]:
    """Return the figures of an evaluated round as text, without those that a method has not."""
    near, alike = (row.get(key) for key in OF_PROTOTYPES)
    values = (100 * row["accuracy"], None if near is None else 100 * near, alike)
    found = zip(ROUND_FIGURES, values, strict=True)
    return {name: f"{value:.6g}" for name, value in found if value is not None}


def draw_traffic(options: argparse.Namespace, jobs: list[Job]) -> None:
    """Draw the accuracy of jobs on one partition against their traffic."""
    plot = options.output / f"traffic-{jobs[0].partition.replace(' ', '-')}.png"
    runs = [options.output / job.name for job in jobs]
    done = [str(run) for run in runs if summary(run).get("status") == "completed"]
    fedapp(["traffic", *done, "--plot", str(plot)], plot.with_suffix(".log"))


def parsed() -> argparse.Namespace:
    """Return the options of the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--images-per-class", type=int, default=1400, help="0: all")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--group", default="tiny")
    parser.add_argument("--feature-dim", type=int, default=0, help="0: the group's default")
    parser.add_argument("--batch-size", type=int, default=10)
    parser.add_argument(
        "--lr", type=listed(float), default="0.01", help="one rate, or several: A,B"
    )
    parser.add_argument("--eval-every", type=int, default=1)
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seeds", type=listed(int), default="0")
    parser.add_argument(
        "--only", type=listed(str), default="", help="method names, separated by commas"
    )
    parser.add_argument("--partitions", type=listed(str), default=",".join(PARTITIONS))
    parser.add_argument("--keys", default="", help="further keys of every run")
    parser.add_argument("--output", type=Path, default=Path("runs/heterogeneous"))
    options = parser.parse_args()
    for asked, known in ((options.partitions, list(PARTITIONS)), (options.only, OWN_MODELS)):
        if unknown := [name for name in asked if name not in known]:
            parser.error(f"'{unknown[0]}' is none of {', '.join(known)}")
    return options


def listed(kind: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    """Return a function that parses values separated by commas."""
    return lambda text: [kind(part) for part in text.split(",") if part]


def main() -> None:
    """Train the missing runs, print the table and plot accuracy against traffic."""
    options = parsed()
    data = "dataset='digits'"
    if folder := options.folder:
        if options.images_per_class:
            folder = subset(folder, options.images_per_class, options.output / "images")
        data = f"dataset='images' data-dir='{folder.absolute()}'"
    methods = [method for method in OWN_MODELS if not options.only or method in options.only]
    pairs = [(method, partition) for partition in options.partitions for method in methods]
    train_all = partial(in_turn, partial(run, options=options, data=data), at_once=options.jobs)
    grid = {pair: [Job(*pair, lr, options.seeds[0]) for lr in options.lr] for pair in pairs}
    train_all([job for jobs in grid.values() for job in jobs])
    rates = [row_of(options.output, [job]) for jobs in grid.values() for job in jobs]
    write_table(options.output / "grid.md", rates)
    best = {pair: best_rate(options.output, jobs) for pair, jobs in grid.items()}
    chosen = [[Job(*pair, best[pair], seed) for seed in options.seeds] for pair in pairs]
    train_all([job for seeds in zip(*chosen, strict=True) for job in seeds])
    rows = [row_of(options.output, jobs) for jobs in chosen]
    print(write_table(options.output / "table.md", rows))
    every = [job for jobs in (*grid.values(), *chosen) for job in jobs]
    write_rounds(options.output / "rounds.csv", dict.fromkeys(every))
    for partition in options.partitions:
        draw_traffic(options, [jobs[0] for jobs in chosen if jobs[0].partition == partition])


if __name__ == "__main__":
    main()
