"""The GPU part: the tax there, what each precision costs, and whether memory stays flat.

On a machine without a GPU one line says so.
"""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fedapp.benchmarking.federated import configuration, measured_in_process, resources
from fedapp.benchmarking.plan import Plan
from fedapp.benchmarking.precision import measure_precisions
from fedapp.benchmarking.tax import measure_tax
from fedapp.launch import gpu_names

MEMORY_ROUNDS = 20
FLAT = 1.01  # memory of the last rounds over that of the first ones


def measure_gpu(project: Path, data_dir: Path, plan: Plan) -> dict[str, Any] | str:
    """Measure on the first GPU, or return why that was skipped.

    Returns:
        What `measure_tax` and `measure_precisions` return, and "memory": "peak_megabytes" over 20
        rounds and "growth", the peak of the last ten over that of the first ten.
    """
    if not len(gpu_names()):
        return "skipped: no GPU was found"
    return {
        **measure_tax(project, data_dir, plan, plan.methods, "cuda"),
        **measure_precisions(project, data_dir, plan, "cuda"),
        "memory": measure_memory(project, data_dir, plan),
    }


def measure_memory(project: Path, data_dir: Path, plan: Plan) -> dict[str, Any]:
    """Return the peak of the GPU memory of a process over 20 rounds, and whether it grows."""
    workload = replace(plan.cost, rounds=MEMORY_ROUNDS)
    config = configuration(data_dir, workload, model=plan.models[0], method="fedavg", device="cuda")
    readings: list[int] = []
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.05):
            readings.append(torch.cuda.memory_reserved())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        measured_in_process(project, config, resources("cuda"))
    finally:
        done.set()
        watcher.join()
    growth = growth_of(readings)
    return {
        "peak_megabytes": max(readings, default=0) / 1e6,
        "growth": growth,
        "flat": growth <= FLAT,
    }


def growth_of(readings: list[int]) -> float:
    """Return the peak of the second half of some readings over that of the first half."""
    used = [value for value in readings if value]
    first, second = used[: len(used) // 2], used[len(used) // 2 :]
    return max(second) / max(first) if first and second else 1.0
