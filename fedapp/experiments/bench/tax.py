"""The FL tax: images per second of simulated rounds over those of a plain loop."""

import logging
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedapp.engines.launch import run
from fedapp.experiments.bench.federated import Speed, measured_workload, resources
from fedapp.experiments.bench.plain_loop import architectures, layouts, plain_images_per_second
from fedapp.experiments.bench.plan import Plan, Workload
from fedapp.experiments.bench.superlink import run_with_superlink
from fedapp.experiments.jobs import Runner
from fedapp.methods.table import METHODS
from fedapp.models.groups import MODEL_GROUPS

log = logging.getLogger(__name__)
Repeat = Mapping[str, Speed]  # by method


def best_plain(model: str, workload: Workload, device: str, tuned: bool = False) -> float:
    """Return the images per second of the fastest layout of the plain loop.

    For a model group this is the speed with equal numbers of images for its architectures.
    """
    names = architectures(model)
    best = [
        max(
            plain_images_per_second(name, each, workload.batch_size, workload.plain_seconds)
            for each in layouts(device, tuned)
        )
        for name in names
    ]
    return statistics.harmonic_mean(best)


def federated_speed(
    project: Path,
    model: str,
    method: str,
    workload: Workload,
    device: str,
    simulate: Runner = run_with_superlink,
) -> Speed:
    """Simulate one run and return the speed of its rounds; raises UserError if it fails."""
    key = "model-group" if model in MODEL_GROUPS else "model"
    changes = {"method": method, "device": device, key: model}
    allowed = resources(device)
    return measured_workload(project, workload, allowed, simulate, **changes).speed()


def measure_tax(project: Path, plan: Plan, methods: Sequence[str], device: str) -> dict[str, Any]:
    """Measure plain loop and federated runs alternately; results are medians over the repeats.

    The plain loop trains with cross-entropy for every method. Methods with personal models are
    measured with the plan's model groups, the others with its backbones.

    Returns:
        "fl_tax": by model, images/s of the first method's rounds over images/s of the plain loop.
        "fl_tax_by_method": the same by model and method.
        "fl_tax_tuned": "fl_tax" against a plain loop that keeps freed memory as the app does.
        "fl_tax_workers": "fl_tax" of `fedapp run`; all others are of `flwr run`.
        "fl_tax_workers_tuned": the same against the loop of "fl_tax_tuned".
        "round_cost": by model and method, seconds per round over the first method's.
        "images_per_second": by model, those of the plain loop, for orientation.
    """
    results: dict[str, dict[str, Any]] = {
        "fl_tax": {}, "fl_tax_by_method": {}, "fl_tax_tuned": {}, "fl_tax_workers": {},
        "fl_tax_workers_tuned": {}, "round_cost": {}, "images_per_second": {},
    }  # fmt: skip
    for model in plan.models:
        suitable = [
            m for m in methods if (METHODS[m].heterogeneous is not None) == (model in MODEL_GROUPS)
        ]
        if suitable:
            row = _measure_model(project, plan, model, suitable, device)
            for key, value in row.items():
                results[key][model] = value
    return results


def _measure_model(
    project: Path, plan: Plan, model: str, methods: Sequence[str], device: str
) -> dict[str, Any]:
    """Return a model's entries in the result of `measure_tax`."""
    plain, tuned, runs, on_workers = [], [], [], []
    workload = plan.workload(model)
    for repeat in range(plan.repeats):
        title = f"{device} {model}, repeat {repeat + 1} of {plan.repeats}"
        say(f"{title}: plain loop")
        plain.append(best_plain(model, workload, device))
        tuned.append(best_plain(model, workload, device, tuned=True))
        say(f"{title}: {methods[0]}, fedapp run")
        arguments = model, methods[0], workload, device
        on_workers.append({methods[0]: federated_speed(project, *arguments, run)})
        speeds = {}
        for method in plan.asked(model, methods, repeat):
            say(f"{title}: {method}")
            speeds[method] = federated_speed(project, model, method, workload, device)
        runs.append(speeds)
        rates = [f"{m} {_rate(speed, plain[-1]):.3g}" for m, speed in speeds.items()]
        say(f"{title}: {plain[-1]:.0f} images/s, of which {', '.join(rates)}")
    taxes = {m: _tax(m, runs, plain) for m in methods}
    return {
        "fl_tax": taxes[methods[0]],
        "fl_tax_by_method": taxes,
        "fl_tax_tuned": _tax(methods[0], runs, tuned),
        "fl_tax_workers": _tax(methods[0], on_workers, plain),
        "fl_tax_workers_tuned": _tax(methods[0], on_workers, tuned),
        "round_cost": {m: _cost(m, methods[0], runs) for m in methods},
        "images_per_second": rounded_median(plain),
    }


def rounded_median(values: Sequence[float]) -> float:
    """Return the median, rounded to four decimals."""
    return round(statistics.median(values), 4)


def say(text: str) -> None:
    """Log what is measured; stdout is for the results."""
    log.info("bench: %s", text)


def _rate(speed: Speed, plain: float) -> float:
    return speed.images_per_second / plain


def _tax(method: str, runs: Sequence[Repeat], plain: Sequence[float]) -> float:
    pairs = zip(runs, plain, strict=True)
    return rounded_median([_rate(run[method], best) for run, best in pairs if method in run])


def _cost(method: str, reference: str, runs: Sequence[Repeat]) -> float:
    measured = (run for run in runs if method in run)
    return rounded_median([run[method].seconds / run[reference].seconds for run in measured])
