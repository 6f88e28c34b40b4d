"""The cost of each method: seconds per round over FedAvg's, without Flower's processes.

A run of FedAvg follows each run of another method, because other programs may slow a machine down
for minutes.
"""

from itertools import product
from pathlib import Path
from typing import Any

from fedapp.core.errors import UserError
from fedapp.experiments.bench.federated import measured_in_process, resources
from fedapp.experiments.bench.plan import Plan
from fedapp.experiments.bench.tax import rounded_median, say
from fedapp.methods.table import METHODS


def measure_methods(project: Path, plan: Plan) -> dict[str, Any]:
    """Measure every method of the table with the plan's first model, on the CPU.

    Methods that fine-tune at the end are left out, because their rounds are those of the base
    method.

    Returns:
        "method_cost": by method, the median ratio over the repeats. "method_skipped": by method,
            the reason why it could not run with this model and data.
    """
    cost: dict[str, list[float]] = {}
    skipped: dict[str, str] = {}
    methods = [method for method, row in METHODS.items() if not row.fine_tuned]
    for repeat, method in product(range(plan.repeats), methods):
        say(f"cost of {method}, repeat {repeat + 1} of {plan.repeats}")
        try:
            seconds = _seconds(project, plan, method)
            reference = _seconds(project, plan, next(iter(METHODS)))
            cost.setdefault(method, []).append(seconds / reference)
        except UserError as error:
            skipped[method] = str(error)
    return {
        "method_cost": {method: rounded_median(ratios) for method, ratios in cost.items()},
        "method_skipped": skipped,
    }


def _seconds(project: Path, plan: Plan, method: str) -> float:
    model = {} if METHODS[method].heterogeneous else {"model": plan.backbone}
    changes = {**model, "method": method, "device": "cpu"}
    return measured_in_process(project, plan.cost, resources("cpu"), **changes).speed().seconds
