"""Real runs of the app, and the speed of their rounds.

A run is simulated, by default as in `fedapp run`, or executed in this process if only its
arithmetic is compared. In both cases the results come from the run's own metrics.
"""

import statistics
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedapp.core.errors import UserError
from fedapp.core.hardware import cores
from fedapp.engines.in_process import run_in_process
from fedapp.engines.launch import run
from fedapp.engines.resources import Resources
from fedapp.experiments.bench.machine import benchmark_images
from fedapp.experiments.bench.plan import Workload
from fedapp.experiments.jobs import Runner, stdout_to_stderr
from fedapp.results.run_directory import RunDirectory

NAME = "bench"


@dataclass(frozen=True)
class Speed:
    """Medians over the measured rounds of one run."""

    images_per_second: float
    seconds: float  # per round


@dataclass(frozen=True)
class Rounds:
    """The rows of a run's metrics, and the time to its first round's end."""

    rows: list[dict[str, Any]]
    first_round: float  # seconds from the start of the command to the end of round 1

    def speed(self) -> Speed:
        """Return the medians of all rounds except the first, which includes loading and warm-up."""
        rows = self.rows[1:]
        return Speed(
            statistics.median(row["images"] / row["seconds"] for row in rows),
            statistics.median(row["seconds"] for row in rows),
        )


def configuration(data_dir: Path, workload: Workload, **changes: Any) -> dict[str, Any]:
    """Return the run configuration of a workload: evaluation only at the end, no augmentation."""
    values = {
        "dataset": "cifar10", "data-dir": str(data_dir), "partition": "iid", "pool-data": False,
        "num-clients": workload.clients, "participation": 1.0, "local-epochs": workload.epochs,
        "batch-size": workload.batch_size, "lr": 0.01, "augmentation": "none",
        "num-rounds": workload.rounds, "eval-every": workload.rounds,
    }  # fmt: skip
    return values | {key.replace("_", "-"): value for key, value in changes.items()}


def resources(device: str, workers: int = 0) -> Resources:
    """Return the resources of a simulation on a device."""
    if device == "cpu":
        return Resources(workers=workers or cores(), gpus=0.0)
    return Resources(workers=workers)


def measured_run(
    project: Path, config: Mapping[str, Any], allowed: Resources, runner: Runner = run
) -> Rounds:
    """Run once and return the rounds; raises UserError if the run did not complete."""
    with tempfile.TemporaryDirectory(prefix="fedapp-bench-") as output:
        started = time.time()
        with stdout_to_stderr():
            code = runner(project, {**config, "output-dir": output, "run-name": NAME}, allowed)
        if code != 0:
            label = f"{config.get('method')} with {config.get('model')}"
            raise UserError(f"the run of {label} did not complete, see its log")
        directory = RunDirectory.load(Path(output) / NAME)
        rows = directory.rounds()
        later = sum(row["seconds"] for row in rows[1:])  # the file's time is the last round's end
        return Rounds(rows, directory.metrics_path.stat().st_mtime - later - started)


def measured_workload(
    project: Path, workload: Workload, allowed: Resources, runner: Runner = run, **changes: Any
) -> Rounds:
    """Run a workload once, on generated images; `changes` override its configuration.

    Raises UserError if the run did not complete.
    """
    with benchmark_images(workload.clients * workload.images) as data_dir:
        config = configuration(data_dir, workload, **changes)
        return measured_run(project, config, allowed, runner)


def measured_in_process(
    project: Path, workload: Workload, allowed: Resources, **changes: Any
) -> Rounds:
    """Run a workload once without Flower's processes; otherwise as `measured_workload`."""
    one = replace(allowed, workers=1)
    return measured_workload(project, workload, one, run_in_process, **changes)
