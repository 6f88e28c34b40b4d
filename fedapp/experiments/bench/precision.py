"""The cost of each precision of local training, for a method without and one with a teacher."""

from pathlib import Path
from typing import Any

from fedapp.experiments.bench.federated import measured_in_process, resources
from fedapp.experiments.bench.plan import Plan
from fedapp.experiments.bench.tax import rounded_median, say

CASES = (
    ("fedavg", "fp32"), ("fedavg", "tf32"), ("fedavg", "bf16"),
    ("feddr+", "fp32"), ("feddr+", "bf16-teacher"), ("feddr+", "bf16"),
)  # fmt: skip


def measure_precisions(project: Path, plan: Plan, device: str) -> dict[str, Any]:
    """Measure rounds of the plan's first model in each precision, in this process.

    Returns:
        "precision_cost": by "method, precision", seconds per round over those of `fedavg` in fp32;
        medians over the repeats. On a CPU tf32 is fp32.
    """
    ratios: dict[str, list[float]] = {}
    for _ in range(plan.repeats):
        seconds: dict[str, float] = {}
        for method, precision in CASES:
            say(f"{device} {plan.backbone}, {method} in {precision}")
            measured = measured_in_process(
                project, plan.cost, resources(device),
                model=plan.backbone, method=method, device=device, precision=precision,
            )  # fmt: skip
            seconds[f"{method}, {precision}"] = measured.speed().seconds
        reference = next(iter(seconds.values()))
        for case, value in seconds.items():
            ratios.setdefault(case, []).append(value / reference)
    return {"precision_cost": {case: rounded_median(values) for case, values in ratios.items()}}
