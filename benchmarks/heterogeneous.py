"""All methods with a model per client on the same job, as one table and one plot.

    python benchmarks/heterogeneous.py [FOLDER] [--rounds 12] [--seeds 0,1,2] [--only A,B]

20 clients, all in every round, on Dirichlet 0.1 and on two classes per client. Without FOLDER: the
built-in digits. FOLDER holds train/CLASS/*.jpg and test/CLASS/*.jpg, of which --images-per-class
are taken. Every client has a node of its own, so that bytes are counted as on real hosts. Every run
is one process with one thread; interrupted, it goes on with the runs that are not complete.
"""

import argparse
from functools import partial
from pathlib import Path
from statistics import mean, median, pstdev

from runs_in_turn import fedapp, in_turn, markdown, rounds, summary, train

from fedapp.methods import METHODS

PARTITIONS = {
    "Dirichlet 0.1": "partition='dirichlet' alpha=0.1",
    "2 classes": "partition='pathological' classes-per-client=2",
}
BASE = "num-clients=20 participation=1.0 device='cpu' checkpoint-every=0"
COLUMNS = ("best", "final", "std of clients", "kB per round", "s per round", "peak MB")


def subset(folder: Path, per_class: int, target: Path) -> Path:
    """Link the first images of each class, a seventh of them for testing, as 60,000 have 10,000."""
    for part, count in (("train", per_class - per_class // 7), ("test", per_class // 7)):
        for source in sorted(path for path in (folder / part).iterdir() if path.is_dir()):
            place = target / part / source.name
            place.mkdir(parents=True, exist_ok=True)
            for image in sorted(source.iterdir())[:count]:
                if not (place / image.name).exists():
                    (place / image.name).symlink_to(image.absolute())
    return target


def name_of(job: tuple[str, str, int]) -> str:
    """Return the name of a run."""
    method, partition, seed = job
    return f"{method}-{partition.replace(' ', '-')}-seed{seed}"


def run(job: tuple[str, str, int], options: argparse.Namespace, data: str) -> None:
    """Train one method on one partition with one seed, unless that is done."""
    method, partition, seed = job
    train(
        options.output,
        name_of(job),
        f"{BASE} {data} {PARTITIONS[partition]} method='{method}' seed={seed} lr={options.lr:g} "
        f"model-group='{options.group}' batch-size={options.batch_size} "
        f"num-rounds={options.rounds} eval-every={options.eval_every}",
        nodes=20,
    )


def figures(folders: list[Path]) -> list[str]:
    """Return the figures of one method on one partition, of all its seeds, as text."""
    found = [summary(folder) for folder in folders]
    if any(one.get("status") != "completed" for one in found):
        return [str(one.get("reason", "not run"))[:60] for one in found][:1] + [""] * 5
    rows = [row for folder in folders for row in rounds(folder)]
    spread = [row["client_accuracy_std"] for folder in folders for row in rounds(folder)[-1:]]
    return [
        percent([one["accuracy_best"] for one in found]),
        percent([one["accuracy_final"] for one in found]),
        f"{100 * mean(spread):.1f}",
        f"{mean(row['bytes_up'] + row['bytes_down'] for row in rows) / 1e3:,.0f}",
        f"{median(row['seconds'] for row in rows):.1f}",
        f"{max(one['peak_memory'] for one in found) / 1e6:.0f}",
    ]


def percent(values: list[float]) -> str:
    """Return a mean in percent, with the standard deviation of several seeds."""
    text = f"{100 * mean(values):.1f}"
    return text if len(values) == 1 else f"{text} ± {100 * pstdev(values):.1f}"


def main() -> None:
    """Run what is missing, print the table and draw accuracy against traffic."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--images-per-class", type=int, default=1400)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--group", default="tiny")
    parser.add_argument("--batch-size", type=int, default=10)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--eval-every", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--only", default="", help="method names, separated by commas")
    parser.add_argument("--output", type=Path, default=Path("runs/heterogeneous"))
    options = parser.parse_args()
    data = "dataset='digits'"
    if options.folder:
        images = subset(options.folder, options.images_per_class, options.output / "images")
        data = f"dataset='images' data-dir='{images.absolute()}'"
    methods = [m for m, row in METHODS.items() if row.personal is not None]
    methods = [m for m in methods if not options.only or m in options.only.split(",")]
    seeds = [int(seed) for seed in options.seeds.split(",")]
    pairs = [(method, partition) for partition in PARTITIONS for method in methods]
    jobs = [(*pair, seed) for seed in seeds for pair in pairs]
    in_turn(partial(run, options=options, data=data), jobs, options.jobs)
    lines = []
    for method, partition in pairs:
        folders = [options.output / name_of((method, partition, seed)) for seed in seeds]
        lines.append([f"`{method}`", partition, *figures(folders)])
    table = markdown(["method", "partition", *COLUMNS], lines)
    (options.output / "table.md").write_text(table)
    print(table)
    for partition in PARTITIONS:
        runs = [options.output / name_of((m, partition, seeds[0])) for m in methods]
        plot = options.output / f"traffic-{partition.replace(' ', '-')}.png"
        done = [str(run) for run in runs if summary(run).get("status") == "completed"]
        fedapp(["traffic", *done, "--plot", str(plot)], plot.with_suffix(".log"))


if __name__ == "__main__":
    main()
