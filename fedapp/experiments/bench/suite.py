"""The whole benchmark: it runs the parts and writes the result files."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from fedapp.core.errors import UserError, unknown
from fedapp.core.files import write_atomically
from fedapp.core.progress import tracked
from fedapp.experiments.bench.engine import measure_engine
from fedapp.experiments.bench.gpu import measure_gpu
from fedapp.experiments.bench.machine import environment
from fedapp.experiments.bench.method_cost import measure_methods
from fedapp.experiments.bench.plan import Plan
from fedapp.experiments.bench.precision import measure_precisions
from fedapp.experiments.bench.scale import measure_scale
from fedapp.experiments.bench.tables import draw, markdown
from fedapp.experiments.bench.tax import measure_tax
from fedapp.methods.table import METHODS
from fedapp.models.backbones import BACKBONES
from fedapp.models.groups import MODEL_GROUPS
from fedapp.results.plots.rendering import png

Part = Callable[[Path, Plan], dict[str, Any]]

PARTS: dict[str, Part] = {
    "tax": lambda project, plan: measure_tax(project, plan, plan.methods, "cpu"),
    "methods": measure_methods,
    "precision": lambda project, plan: measure_precisions(project, plan, "cpu"),
    "engine": measure_engine,
    "scale": measure_scale,
    "gpu": lambda project, plan: {"gpu": measure_gpu(project, plan)},
}


def bench(
    project: Path, plan: Plan, parts: Sequence[str] = (), folder: Path | None = None
) -> dict[str, Any]:
    """Run the named parts, by default all, and return their results in one dictionary.

    With a `folder`, which is created, the results so far are written to it after each part.

    Returns:
        "fl_tax": {model: ratio}, and the other results of the parts' functions. "skipped_methods":
            the plan's methods that are not in the method table. "plan" and "environment".

    Raises:
        UserError: an unknown model or part, a folder with other results or without write access,
            or a run that did not complete.
    """
    models = {**BACKBONES, **MODEL_GROUPS}
    for model in plan.models:
        if model not in models:
            raise unknown("model", model, models)
    for part in parts:
        if part not in PARTS:
            raise unknown("benchmark part", part, PARTS)
    absent = [method for method in plan.methods if method not in METHODS]
    plan = replace(plan, methods=tuple(m for m in plan.methods if m in METHODS))
    results: dict[str, Any] = {"skipped_methods": absent, "plan": asdict(plan)}
    if folder:
        _create(folder)
    for part in tracked(list(parts or PARTS), "benchmark parts"):
        results |= PARTS[part](project, plan) | {"environment": environment()}
        if folder:
            write(results, folder)
    return results


def _create(folder: Path) -> None:
    """Create a folder for results, before hours of measuring; raises UserError if it has some."""
    if (folder / "bench.json").exists():
        raise UserError(f"{folder} has the results of another benchmark; give another --output-dir")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(f"--output-dir {folder} cannot be written: {error.strerror}") from None


def write(results: dict[str, Any], folder: Path) -> None:
    """Write bench.json, bench.md and bench.png to a folder."""
    write_atomically(folder / "bench.json", json.dumps(results, indent=2).encode())
    write_atomically(folder / "bench.md", (markdown(results) + "\n").encode())
    write_atomically(folder / "bench.png", png(draw(results)))
