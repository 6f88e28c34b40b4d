"""`fedapp bench`: what federated training costs beside its arithmetic, as ratios.

Absolute speeds say more about a machine, and about what else runs on it, than about this program.
So the rounds of real simulated runs and a plain PyTorch loop with the same model and batches are
measured in turn, in one call, and only their ratios are reported.
"""

import importlib.metadata
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedapp.errors import UserError
from fedapp.launch import Resources, cores, count_gpus, run
from fedapp.models.backbones import BACKBONES
from fedapp.plain_loop import CHANNELS, CLASSES, SIDE, layouts, plain_images_per_second
from fedapp.results.run_directory import RunDirectory
from fedapp.sweep import stdout_to_stderr

METHODS = ("fedavg", "fedntd", "feddr+")
REFERENCE = METHODS[0]


@dataclass(frozen=True)
class Workload:
    """What is measured: every client trains on `images` images for `epochs` epochs per round."""

    clients: int = 10
    images: int = 500
    epochs: int = 5
    batch_size: int = 50
    rounds: int = 4  # of one run; the first is not counted
    repeats: int = 3
    plain_seconds: float = 15.0  # for each layout of the plain loop


FULL = Workload()
QUICK = Workload(rounds=2, repeats=1, plain_seconds=5.0)


def best_plain(model_name: str, workload: Workload, device: str) -> float:
    """Return the images per second of the fastest layout of the plain loop."""
    return max(
        plain_images_per_second(model_name, each, workload.batch_size, workload.plain_seconds)
        for each in layouts(device)
    )


@dataclass(frozen=True)
class RoundSpeed:
    """Medians over the measured rounds of one run."""

    images_per_second: float
    seconds: float


def federated_speed(
    project: Path, data_dir: Path, model: str, method: str, workload: Workload, device: str
) -> RoundSpeed:
    """Simulate one run and return the speed of its rounds, the first left out.

    Raises:
        UserError: the run did not complete.
    """
    resources = Resources(workers=cores(), gpus=0.0) if device == "cpu" else Resources()
    with tempfile.TemporaryDirectory(prefix="fedapp-bench-") as output:
        config = {
            "method": method, "model": model, "dataset": "images", "data-dir": str(data_dir),
            "partition": "iid", "num-clients": workload.clients, "participation": 1.0,
            "local-epochs": workload.epochs, "batch-size": workload.batch_size, "lr": 0.01,
            "augmentation": "none", "num-rounds": workload.rounds, "eval-every": workload.rounds,
            "device": device, "output-dir": output, "run-name": "bench",
        }  # fmt: skip
        with stdout_to_stderr():
            code = run(project, config, resources)
        if code != 0:
            raise UserError(f"the run of {method} with {model} did not complete, see its log")
        rows = RunDirectory.load(Path(output) / "bench").rounds()
    return RoundSpeed(
        statistics.median(row["images"] / row["seconds"] for row in rows[1:]),
        statistics.median(row["seconds"] for row in rows[1:]),
    )


def measure_device(
    project: Path, data_dir: Path, models: Sequence[str], workload: Workload, device: str
) -> dict[str, dict[str, Any]]:
    """Measure plain loop and federated runs in turn; returns medians over the repeats.

    Returns:
        "fl_tax": by model, images/s of FedAvg's rounds over images/s of the plain loop.
        "method_cost": by model and method, seconds per round over FedAvg's.
    """
    tax: dict[str, list[float]] = {model: [] for model in models}
    cost: dict[str, dict[str, list[float]]] = {m: {k: [] for k in METHODS} for m in models}
    for repeat in range(workload.repeats):
        for model in models:
            _say(f"{device} {model}, repeat {repeat + 1} of {workload.repeats}: plain loop")
            plain = best_plain(model, workload, device)
            speeds = {}
            for method in METHODS:
                _say(f"{device} {model}, repeat {repeat + 1} of {workload.repeats}: {method}")
                speeds[method] = federated_speed(project, data_dir, model, method, workload, device)
            reference = speeds[REFERENCE]
            tax[model].append(reference.images_per_second / plain)
            for method, speed in speeds.items():
                cost[model][method].append(speed.seconds / reference.seconds)
    return {
        "fl_tax": {model: _ratio(found) for model, found in tax.items()},
        "method_cost": {m: {k: _ratio(v) for k, v in by.items()} for m, by in cost.items()},
    }


def bench(project: Path, models: Sequence[str], workload: Workload) -> dict[str, Any]:
    """Run the benchmark on the CPU, and on the GPU where there is one.

    Returns:
        "fl_tax" and "method_cost" of the CPU (see `measure_device`), "gpu": the same, or why it was
        skipped; "workload" and "environment".

    Raises:
        UserError: an unknown model, or a run that did not complete.
    """
    for model in models:
        if model not in BACKBONES:
            raise UserError(f"model '{model}' is unknown; choose from {', '.join(BACKBONES)}")
    with benchmark_images(workload) as data_dir:
        found: dict[str, Any] = measure_device(project, data_dir, models, workload, "cpu")
        found["gpu"] = (
            measure_device(project, data_dir, models, workload, "cuda")
            if count_gpus()
            else "skipped: no GPU was found"
        )
    return {**found, "workload": asdict(workload), "environment": environment()}


@contextmanager
def benchmark_images(workload: Workload) -> Iterator[Path]:
    """Make an image folder of random 32x32 colour images, and a data cache, for a while."""
    with tempfile.TemporaryDirectory(prefix="fedapp-bench-") as folder:
        rng = np.random.default_rng(0)
        _write_images(Path(folder) / "data/train", workload.clients * workload.images, rng)
        _write_images(Path(folder) / "data/test", CLASSES, rng)
        before = os.environ.get("FEDAPP_CACHE")
        os.environ["FEDAPP_CACHE"] = str(Path(folder) / "cache")
        try:
            yield Path(folder) / "data"
        finally:
            os.environ.pop("FEDAPP_CACHE")
            if before is not None:
                os.environ["FEDAPP_CACHE"] = before


def environment() -> dict[str, Any]:
    """Return what the figures depend on besides the program."""
    packages = ("fedapp", "flwr", "ray", "torch")
    return {
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": cores(),
        "load_average_at_end": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in packages},
    }


def markdown(found: dict[str, Any]) -> str:
    """Write the benchmark's results as Markdown tables."""
    lines = ["## CPU", "", *_markdown_tables(found), "", "## GPU", ""]
    gpu = found["gpu"]
    lines += [f"GPU: {gpu}."] if isinstance(gpu, str) else _markdown_tables(gpu)
    for title in ("workload", "environment"):
        lines += ["", f"## {title.capitalize()}", ""]
        lines += [f"- {key.replace('_', ' ')}: {value}" for key, value in found[title].items()]
    return "\n".join(lines)


def _markdown_tables(found: dict[str, Any]) -> list[str]:
    methods = [method for method in METHODS if method != REFERENCE]
    costs = [f"{method} / {REFERENCE}, seconds per round" for method in methods]
    lines = [
        " | ".join(["| model", "FL tax: images/s of a round / of a plain loop", *costs]) + " |"
    ]
    lines.append("|---" * (2 + len(methods)) + "|")
    for model, tax in found["fl_tax"].items():
        ratios = [tax, *(found["method_cost"][model][method] for method in methods)]
        lines.append(f"| {model} | " + " | ".join(f"{ratio:.2f}" for ratio in ratios) + " |")
    return lines


def _write_images(folder: Path, count: int, rng: np.random.Generator) -> None:
    """Write `count` images of random pixels, their classes in turn."""
    from PIL import Image

    for name in range(CLASSES):
        (folder / f"class{name}").mkdir(parents=True)
    for index in range(count):
        pixels = rng.integers(0, 256, (SIDE, SIDE, CHANNELS), dtype=np.uint8)
        path = folder / f"class{index % CLASSES}" / f"{index:06d}.png"
        Image.fromarray(pixels).save(path, compress_level=0)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _ratio(values: Sequence[float]) -> float:
    return round(statistics.median(values), 4)


def _say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)
