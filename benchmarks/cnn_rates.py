"""Learning rates of the methods with a head of their own on the small CNN, where no paper has one.

    python benchmarks/cnn_rates.py FOLDER [--rounds 40] [--jobs 2] [--only A,B] [--output runs/...]

FOLDER holds train/CLASS/*.jpg and test/CLASS/*.jpg of CIFAR-10. 100 clients, 10 per round, two
shards per client, five local epochs of batches of 50, and the rate falls to a tenth at one half and
at three quarters of the rounds. With --central one client holds all images and trains one epoch per
round, which shows how fast a loss learns without heterogeneity. Every run is one process with one
thread. Repeat an interrupted command to train the missing runs. Prints Markdown.
"""

import argparse
from functools import partial
from pathlib import Path
from statistics import mean

from runs_in_turn import in_turn, markdown, rounds, summary, train

RATES = {
    "fedavg": (0.01, 0.03),
    "fedfn": (0.03,),
    "dr": (0.05, 0.35),
    "feddr+": (0.01, 0.05, 0.1, 0.35),
    "spherefed": (0.1, 0.55),
    "spherefed-ce": (0.03,),
    "fedetf": (0.01, 0.05),
}
FEDERATED = "num-clients=100 participation=0.1 partition='shards' shards=2 local-epochs=5"
CENTRAL = "num-clients=1 participation=1.0 partition='iid' local-epochs=1"
BASE = "dataset='images' model='cnn' batch-size=50 lr-schedule='step' device='cpu' eval-every=2"


def name_of(job: tuple[str, float], central: bool) -> str:
    """Return the name of a run."""
    return f"{'central' if central else 'shards'}-{job[0]}-lr{job[1]:g}"


def run(job: tuple[str, float], options: argparse.Namespace) -> None:
    """Train one method at one rate, unless the run exists."""
    method, lr = job
    train(
        options.output,
        name_of(job, options.central),
        f"{BASE} {CENTRAL if options.central else FEDERATED} method='{method}' lr={lr:g} "
        f"data-dir='{options.folder.absolute()}' num-rounds={options.rounds} "
        f"seed={options.seed} precision='{options.precision}' {options.keys}",
    )


def figures(folder: Path) -> list[str]:
    """Return accuracies of a run in percent, as text."""
    found = summary(folder)
    if found.get("status") != "completed":
        return [str(found.get("status", "not run"))]
    rows = [row for row in rounds(folder) if row["accuracy"] is not None]
    last = rows[-1]["round"]
    columns = (
        [row["accuracy"] for row in rows if row["round"] <= last / 2][-3:],
        [row["accuracy"] for row in rows][-3:],
        [found["accuracy_best"]],
    )
    return [f"{100 * mean(values):.1f}" if values else "-" for values in columns]


def main() -> None:
    """Train and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--central", action="store_true")
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(RATES))
    parser.add_argument("--keys", default="", help="further keys of every run")
    parser.add_argument("--output", type=Path, default=Path("runs/cnn-rates"))
    options = parser.parse_args()
    jobs = [(method, lr) for method in options.only for lr in RATES[method]]
    in_turn(partial(run, options=options), jobs, options.jobs)
    columns = ["method", "rate", "before the first decay", "last three tests", "best"]
    rows = [
        [f"`{job[0]}`", f"{job[1]:g}", *figures(options.output / name_of(job, options.central))]
        for job in jobs
    ]
    print(markdown(columns, rows))


if __name__ == "__main__":
    main()
