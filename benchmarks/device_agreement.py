"""Compare a device with the CPU: every loss with its gradients, and one round of every method.

    python benchmarks/device_agreement.py losses|methods|graphs [--device cuda] [--threads 1]
        [--only A,B]

Prints a Markdown table of relative differences, and ends with exit status 1 if one is above the
tolerance. Losses in float32 are compared with the CPU in float64; models after one round in fp32
with those of the CPU; with `graphs`, models trained with and without CUDA graphs. A second count of
threads on the CPU tries the program without a GPU.
"""

import argparse
import inspect
import itertools
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch
from runs_in_turn import markdown
from safetensors.torch import load_file
from torch import Tensor

from clients import losses, prototype_losses
from fedapp.engines.in_process import run_in_process
from fedapp.engines.resources import Resources
from fedapp.methods.table import METHODS
from fedapp.runtime.process.context import close_process

ROOT = Path(__file__).parents[1]
LOSS_TOLERANCE, ROUND_TOLERANCE = 1e-5, 1e-3
BATCH, CLASSES, FEATURES = 50, 10, 64
NOISE = ("generator.first.bias", "generator.norm.running_mean")  # BatchNorm subtracts this bias
QUICK = {"num-rounds": 1, "num-clients": 10, "participation": 0.5, "local-epochs": 1}
QUICK |= {"precision": "fp32", "batch-size": 50}
LONGER = {"num_rounds": 2, "local_epochs": 2, "batch_size": 10, "cuda_graphs": True}
EAGER = {"cuda_graphs": False}


def inputs() -> dict[str, Any]:
    """Return a value for every parameter name of the loss functions, in float64."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    names = {
        (BATCH, FEATURES): ("features", "global_features", "previous_features"),
        (BATCH, CLASSES): ("logits", "global_logits", "teacher", "student", "personal", "meme"),
        (CLASSES, FEATURES): ("classifier", "prototypes"),
        (CLASSES, CLASSES): ("class_logits",),
    }
    values: dict[str, Any] = {
        name: normal(*shape) for shape, each in names.items() for name in each
    }
    values["labels"] = torch.randint(CLASSES, (BATCH,), generator=generator)
    values["class_counts"] = torch.arange(CLASSES)
    values["class_scale"] = torch.arange(CLASSES) / 4.5
    values["known"] = torch.arange(CLASSES) > 0
    values["parameters"] = [normal(8, 3), normal(8)]
    values["global_parameters"] = [normal(8, 3), normal(8)]
    values["num_classes"] = CLASSES
    values["pair"] = (values["logits"], values["global_logits"])
    return values


def converted(value: Any, device: str, dtype: torch.dtype) -> Any:
    """Return a value on a device; floating-point tensors have a type and collect gradients."""
    if isinstance(value, Tensor):
        if not value.is_floating_point():
            return value.to(device)
        return value.detach().to(device, dtype).requires_grad_()
    if isinstance(value, list | tuple):
        return type(value)(converted(each, device, dtype) for each in value)
    return value


def loss_functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the public functions of both modules of losses."""
    for module in (losses, prototype_losses):
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if not name.startswith("_") and function.__module__ == module.__name__:
                yield name, function


def results(function: Callable[..., Any], device: str, dtype: torch.dtype) -> list[Tensor]:
    """Return a loss and the gradients of its inputs, on the CPU in float64."""
    values = inputs()
    if function is prototype_losses.adaptive_mutual:
        values["features"] = (values["features"], values["global_features"])
    required = [
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.default is inspect.Parameter.empty
    ]
    arguments = {name: converted(values[name], device, dtype) for name in required}
    outputs = list(flat(function(**arguments)))
    floating = [each for each in outputs if each.requires_grad]
    if floating:
        torch.autograd.backward([each.sum() for each in floating])
    gradients = [each.grad for each in flat(arguments.values()) if each.grad is not None]
    return [each.detach().cpu().double() for each in (*outputs, *gradients)]


def flat(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of nested lists and tuples."""
    if isinstance(value, Tensor):
        yield value
    elif not isinstance(value, int):
        yield from itertools.chain.from_iterable(map(flat, value))


def difference(one: Tensor, other: Tensor) -> float:
    """Return the largest difference over the largest value."""
    scale = float(other.abs().max()) or 1.0
    return float((one - other).abs().max()) / scale


def compare_losses(device: str) -> Iterator[tuple[str, float]]:
    """Yield the largest relative difference of each loss and its gradients."""
    for name, function in loss_functions():
        found = results(function, device, torch.float32)
        exact = results(function, "cpu", torch.float64)
        yield name, max(difference(a, b) for a, b in zip(found, exact, strict=True))


def compare_methods(device: str, threads: int, only: set[str]) -> Iterator[tuple[str, float]]:
    """Yield the largest relative difference of each method's models after one round."""
    for method in METHODS:
        if only and method not in only:
            continue
        with tempfile.TemporaryDirectory() as folder:
            found = trained(method, device, threads, Path(folder) / "found")
            exact = trained(method, "cpu", 1, Path(folder) / "exact")
        if found.keys() != exact.keys():
            raise SystemExit(f"{method}: the run on {device} has left other files")
        yield method, max(distance(found[name], exact[name]) for name in exact)


def compare_graphs(device: str, only: set[str]) -> Iterator[tuple[str, float]]:
    """Yield the largest relative difference of each method's models with and without CUDA graphs.

    Prints the methods whose steps were not recorded.
    """
    for method in METHODS:
        if only and method not in only:
            continue
        with tempfile.TemporaryDirectory() as folder:
            recorded = trained(method, device, 1, Path(folder) / "recorded", **LONGER)
            if "not recorded" in (Path(folder) / "log").read_text():
                print(f"{method}: not recorded")
            plain = trained(method, device, 1, Path(folder) / "plain", **LONGER | EAGER)
        yield method, max(distance(recorded[name], plain[name]) for name in plain)


def trained(
    method: str, device: str, threads: int, folder: Path, **changes: Any
) -> dict[str, dict[str, Tensor]]:
    """Train one round in this process; returns the server's and the clients' models by file."""
    keys = {**QUICK, "method": method, "device": device, "threads": threads, "keep-state": True}
    keys |= {key.replace("_", "-"): value for key, value in changes.items()}
    keys |= {"output-dir": str(folder), "run-name": "run", "state-dir": str(folder / "states")}
    close_process()
    with (folder.parent / "log").open("w") as log, redirect_stdout(log):
        failed = run_in_process(ROOT, keys, Resources())
    if failed:
        raise SystemExit(f"{method} has failed on {device}: {Path(log.name).read_text()[-1000:]}")
    personal = sorted((folder / "states").rglob("*.safetensors"))
    files = {f"{file.parent.name}/{file.name}": file for file in personal}
    return {
        name: {key: tensor.double() for key, tensor in load_file(file).items() if kept(key, tensor)}
        for name, file in {"model": folder / "run" / "model.safetensors", **files}.items()
    }


def kept(name: str, tensor: Tensor) -> bool:
    """Return whether a tensor is part of a model: no average of Adam's, no count, no noise."""
    return tensor.is_floating_point() and not name.startswith("adam.") and name not in NOISE


def distance(found: dict[str, Tensor], exact: dict[str, Tensor]) -> float:
    """Return the Euclidean distance of two models over the length of the second one.

    Single tensors say less: a bias in front of BatchNorm is rounding errors only.
    """
    if not exact:  # of clients that train alone, the server's model
        return 0.0
    one, other = (torch.cat([m[name].flatten() for name in sorted(exact)]) for m in (found, exact))
    return float((one - other).norm() / other.norm().clamp_min(1e-12))


def main() -> None:
    """Compare, print the table, and fail if a difference is above the tolerance."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=("losses", "methods", "graphs"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--threads", type=int, default=1, help="of the device's run, for cpu")
    parser.add_argument("--only", default="", help="methods, separated by commas")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    only = set(options.only.split(",")) - {""}
    if options.what == "losses":
        tolerance, rows = LOSS_TOLERANCE, list(compare_losses(options.device))
    elif options.what == "graphs":
        tolerance, rows = 0.0, list(compare_graphs(options.device, only))
    else:
        tolerance = ROUND_TOLERANCE
        rows = list(compare_methods(options.device, options.threads, only))
    print(markdown(("name", "largest relative difference"), [(n, f"{d:.1e}") for n, d in rows]))
    worse = [name for name, value in rows if not value <= tolerance]
    print(f"{len(rows)} compared, tolerance {tolerance:g}: {len(worse)} above it")
    sys.exit(f"above the tolerance: {', '.join(worse)}" if worse else 0)


if __name__ == "__main__":
    main()
