"""The cost of rounds by cohort, clients and workers, and the published large job."""

from pathlib import Path
from typing import Any

from fedapp.core.hardware import cores
from fedapp.experiments.bench.federated import measured_workload, resources
from fedapp.experiments.bench.machine import PeakMemory
from fedapp.experiments.bench.plan import Plan, Point, Workload
from fedapp.experiments.bench.tax import say

MODEL = "cnn"


def measure_scale(project: Path, plan: Plan) -> dict[str, Any]:
    """Simulate every point of the plan once, and the job of 1,000 clients.

    Returns:
        "scale": a list of points with their "seconds" per round and "peak_megabytes". "job": the
            same for the large job, with "fits_per_second" and "steps_per_second".
    """
    points = [measure_point(project, point) for point in plan.scale]
    job = measure_point(project, plan.job)
    steps = plan.job.images // plan.job.batch_size
    fits = plan.job.cohort / job["seconds"]
    return {
        "scale": points,
        "job": {**job, "fits_per_second": fits, "steps_per_second": fits * steps},
    }


def measure_point(project: Path, point: Point) -> dict[str, Any]:
    """Simulate one run of FedAvg with the CNN; raises UserError if it does not complete."""
    workers = point.workers or cores()
    say(f"{point.cohort} of {point.clients} clients per round, {workers} workers")
    workload = Workload(
        point.clients, point.images, epochs=1, batch_size=point.batch_size, rounds=point.rounds
    )
    with PeakMemory() as memory:
        speed = measured_workload(
            project, workload, resources("cpu", workers), method="fedavg", model=MODEL,
            device="cpu", participation=point.cohort / point.clients,
        ).speed()  # fmt: skip
    return {
        "clients": point.clients,
        "cohort": point.cohort,
        "workers": workers,
        "seconds": speed.seconds,
        "peak_megabytes": memory.megabytes,
    }
