"""Compare fedapp's rounds with those of a plain loop, stock Flower and pfl-research, in turns.

    python benchmarks/peers/compare.py --pfl PYTHON --repeats 3

PYTHON is the interpreter of an environment with `pfl` and PyTorch; without it pfl-research is left
out. The programs take turns, so that a change of the machine's speed meets all of them. Prints a
table per job: seconds per round (median of all rounds but the first of each run; lowest and
highest of the runs), the speed relative to the plain loop, seconds to the end of round 1, peak
private memory of all processes, and how many cores other programs used just before.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import psutil
import tomli_w
from job import JOBS, Job, write

from fedapp.core.hardware import cores
from fedapp.engines.launch import environment_for, run
from fedapp.engines.resources import Resources
from fedapp.experiments.bench.federated import measured_workload, resources
from fedapp.experiments.bench.machine import PeakMemory
from fedapp.experiments.bench.plain_loop import layouts, plain_images_per_second
from fedapp.experiments.bench.plan import Workload
from fedapp.experiments.bench.superlink import flower_run, local_superlink, run_with_superlink
from fedapp.experiments.jobs import stdout_to_stderr
from fedapp.results.formatting import markdown_table

HERE = Path(__file__).resolve().parent
PLAIN_SECONDS = 10.0


@dataclass(frozen=True)
class Measured:
    """One run of one program."""

    seconds: float  # per round
    first_round: float | None = None  # to its end, from the start of the command
    megabytes: float | None = None
    others: float = 0.0  # cores that other programs used just before


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--job", choices=JOBS, action="append", help="default: all")
    parser.add_argument("--pfl", help="a Python that has pfl and PyTorch")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    programs: dict[str, Callable[[Job], Measured]] = {
        "plain loop": plain_loop,
        "fedapp run": lambda job: ours(job, run),
        "flwr run, fedapp": lambda job: ours(job, run_with_superlink),
        "flwr run, stock Flower": stock_flower,
    }
    if options.pfl:
        for processes in sorted({1, cores()}):
            name = f"pfl-research, processes: {processes}"
            programs[name] = lambda job, n=processes: pfl_research(job, options.pfl, n)
    for name in options.job or JOBS:
        found: dict[str, list[Measured]] = {program: [] for program in programs}
        for repeat in range(options.repeats):
            for program, measure in programs.items():
                print(f"{name}, repeat {repeat + 1}: {program}", file=sys.stderr)
                found[program].append(watched(measure, JOBS[name]))
        print(f"\n## {name}: {JOBS[name]}\n\n{table(found)}")


def watched(measure: Callable[[Job], Measured], job: Job) -> Measured:
    """Measure a program, its memory, and the load of other programs in the second before it."""
    others = psutil.cpu_percent(1.0) / 100 * psutil.cpu_count()
    with PeakMemory() as memory:
        found = measure(job)
    return replace(found, megabytes=memory.megabytes, others=others)


def plain_loop(job: Job) -> Measured:
    """Return the time of the round's arithmetic in the fastest layout of a tuned plain loop."""
    speeds = [
        plain_images_per_second("cnn", layout, job.batch_size, PLAIN_SECONDS)
        for layout in layouts("cpu", tuned=True)
    ]
    return Measured(job.trained / max(speeds))


def ours(job: Job, runner: Callable[..., int]) -> Measured:
    """Run FedAvg of this project."""
    workload = Workload(job.clients, job.images, job.epochs, job.batch_size, job.rounds)
    rounds = measured_workload(
        HERE.parents[1], workload, resources("cpu"), runner, method="fedavg", model="cnn",
        device="cpu", participation=job.cohort / job.clients,
    )  # fmt: skip
    return Measured(rounds.speed().seconds, rounds.first_round)


def stock_flower(job: Job) -> Measured:
    """Run the app in stock_flower/ with `flwr run`, one SuperNode per client, one core each."""
    with tempfile.TemporaryDirectory(prefix="peers-", ignore_cleanup_errors=True) as home:
        folder = Path(home)
        write(job, folder)
        environment = environment_for(folder) | {"OMP_NUM_THREADS": "1"}
        settings = folder / "run.toml"
        settings.write_text(tomli_w.dumps({"folder": home, "programs": str(HERE)}))
        with local_superlink(folder, environment) as wait_until_ready:
            wait_until_ready()
            started = time.time()
            allowed = Resources(job.clients, cores(), 0.0)
            with stdout_to_stderr():
                flower_run(HERE / "stock_flower", settings, allowed, environment)
        return noted(folder, job, started)


def pfl_research(job: Job, python: str, processes: int) -> Measured:
    """Run pfl_job.py with as many processes as asked, one thread each."""
    with tempfile.TemporaryDirectory(prefix="peers-") as home:
        write(job, Path(home))
        command = [python]
        if processes > 1:
            command += ["-m", "torch.distributed.run", "--standalone"]
            command += ["--nproc-per-node", str(processes)]
        started = time.time()
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command += [str(HERE / "pfl_job.py"), home]
        subprocess.run(command, env=environment, stdout=sys.stderr, check=True)
        return noted(Path(home), job, started)


def noted(folder: Path, job: Job, started: float) -> Measured:
    """Return the times that a program noted; raises RuntimeError if rounds are missing."""
    file = folder / "rounds.txt"
    ends = [float(line) for line in file.read_text().split()] if file.exists() else []
    if len(ends) != job.rounds:
        raise RuntimeError(f"{len(ends)} of {job.rounds} rounds ended; see the log above")
    seconds = [after - before for before, after in pairwise(ends)]
    return Measured(statistics.median(seconds), ends[0] - started)


def table(found: dict[str, list[Measured]]) -> str:
    """Return the Markdown table of a job."""
    plain = statistics.median(each.seconds for each in found["plain loop"])
    columns = ["program", "seconds per round", "speed", "round 1 ends, s", "peak MB", "other load"]
    rows = []
    for program, runs in found.items():
        seconds = sorted(each.seconds for each in runs)
        middle = statistics.median(seconds)
        rows.append(
            [
                program, f"{middle:.2f} ({seconds[0]:.2f} to {seconds[-1]:.2f})",
                f"{plain / middle:.2f}", median([each.first_round for each in runs]),
                median([each.megabytes for each in runs]),
                f"{statistics.median(each.others for each in runs):.2f}",
            ]
        )  # fmt: skip
    return "\n".join(markdown_table(columns, rows))


def median(values: list[float | None]) -> str:
    """Return the median of the values that were measured, as text."""
    known = [value for value in values if value is not None]
    return f"{statistics.median(known):,.0f}" if known else "-"


if __name__ == "__main__":
    main()
