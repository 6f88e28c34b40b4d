"""The GPU part: the FL tax, precisions, a paper's rounds, and the growth of memory.

On a machine without a GPU the result is one line.
"""

import gc
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fedapp.core.hardware import gpu_names
from fedapp.experiments.bench.federated import measured_in_process, measured_workload, resources
from fedapp.experiments.bench.plan import Plan
from fedapp.experiments.bench.precision import measure_precisions
from fedapp.experiments.bench.tax import measure_tax, say
from fedapp.runtime.process.context import close_process

MEMORY_ROUNDS = 20
_PAPER_EPOCHS, _PAPER_ROUNDS, _PAPER_SECONDS = 3, 320, 20.4  # CIFAR-100, 10 clients per round
FLAT = 1.01  # largest allowed growth of memory


def measure_gpu(project: Path, plan: Plan) -> dict[str, Any] | str:
    """Measure on the first GPU, or return the reason why this was skipped.

    Returns:
        The results of `measure_tax`, with the CNN's workload for all models, of
        `measure_precisions` and of `measure_paper`, and "memory": "peak_megabytes" over 20 rounds,
        "growth" (the peak of the last ten over that of the first ten) and "flat".
    """
    if not len(gpu_names()):
        return "skipped: no GPU was found"
    plan = replace(plan, heavy=plan.tax, heaviest=plan.tax, cost=plan.tax)
    return {
        **measure_tax(project, plan, plan.methods, "cuda"),
        **measure_precisions(project, plan, "cuda"),
        **measure_paper(project, plan, "cuda"),
        "memory": measure_memory(project, plan),
    }


def measure_paper(project: Path, plan: Plan, device: str) -> dict[str, dict[str, float]]:
    """Measure rounds of the FedDr+ paper's table 4: MobileNet, 10 x 500 images, 3 epochs.

    Returns:
        "paper": "seconds" per round of `fedavg` through `fedapp run`, "paper_seconds" of the paper,
        on an RTX 3090, and "minutes" that its 320 rounds take at this rate.
    """
    say(f"{device}: the FedDr+ paper's rounds")
    workload = replace(plan.tax, epochs=_PAPER_EPOCHS)
    measured = measured_workload(
        project, workload, resources(device), model="mobilenet", method="fedavg", device=device
    )
    seconds = measured.speed().seconds
    minutes = seconds * _PAPER_ROUNDS / 60
    return {"paper": {"seconds": seconds, "paper_seconds": _PAPER_SECONDS, "minutes": minutes}}


def measure_memory(project: Path, plan: Plan) -> dict[str, Any]:
    """Return the peak of the GPU memory of a process over 20 rounds, and whether it grows."""
    workload = replace(plan.cost, rounds=MEMORY_ROUNDS)
    close_process()
    gc.collect()
    torch.cuda.empty_cache()  # memory of earlier runs
    readings: list[int] = []
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.05):
            readings.append(torch.cuda.memory_reserved())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        measured_in_process(
            project, workload, resources("cuda"),
            model=plan.backbone, method="fedavg", device="cuda",
        )  # fmt: skip
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
