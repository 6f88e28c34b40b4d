"""A plain centralised PyTorch loop: the upper bound of the speed of a federated round.

It has the model, batch size, optimiser and precision of a federated run and its data as tensors on
the device, but no augmentation, messages or clients. Depending on the machine, one process with all
threads or one process per core is faster, so both can be measured.
"""

import multiprocessing
import queue
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fedapp.core.hardware import cores, keep_memory, set_float32_precision
from fedapp.experiments.bench.machine import CHANNELS, CLASSES, SIDE
from fedapp.models.architectures import build_heterogeneous_extractor
from fedapp.models.groups import MODEL_GROUPS
from fedapp.models.heads import build_head
from fedapp.models.model import Model, build_model
from fedapp.models.quick_layers import use_plain_layers

_GPU_PROCESSES = 4
_FEATURES = 64  # feature dimension of a group's models
_WARM_UP_STEPS = 5
_START_UP_SECONDS = 300


@dataclass(frozen=True)
class Layout:
    """The plain loop's processes on a machine: equal processes that train simultaneously."""

    processes: int
    threads: int
    device: str = "cpu"
    tuned: bool = False  # keeps freed memory and has the quicker layers, as the app does


def layouts(device: str, tuned: bool = False) -> list[Layout]:
    """Return the layouts for a device; the speed of the plain loop is that of the best one."""
    if device == "cpu":
        candidates = [Layout(1, cores(), device, tuned), Layout(cores(), 1, device, tuned)]
        return list(dict.fromkeys(candidates))
    return [Layout(1, 1, device, tuned), Layout(_GPU_PROCESSES, 1, device, tuned)]


def train_plainly(
    model_name: str, batch_size: int, layout: Layout, seconds: float, ready: Callable[[], object]
) -> float:
    """Train on random 32x32 colour images for about `seconds`; return images per second.

    `model_name` is a backbone or one of `architectures`.

    `ready` is called immediately before the measurement starts.
    """
    device = layout.device
    model = _model(model_name).to(device)
    if not layout.tuned:
        use_plain_layers(model)
    images = torch.randn(2000, CHANNELS, SIDE, SIDE).to(device)
    images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(0, CLASSES, (len(images),)).to(device)
    optimiser = torch.optim.SGD(model.parameters(), 0.01, 0.9, weight_decay=1e-5, fused=True)

    def step() -> None:
        chosen = torch.randint(0, len(labels), (batch_size,), device=device)
        _, logits = model(images[chosen])
        optimiser.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(logits, labels[chosen]).backward()
        optimiser.step()

    for _ in range(_WARM_UP_STEPS):  # the first steps allocate memory and choose kernels
        step()
    _wait(device)
    ready()
    steps, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        step()
        steps += 1
    _wait(device)
    return steps * batch_size / (time.perf_counter() - start)


def architectures(model: str) -> list[str]:
    """Return the names for `train_plainly` of a backbone, or of a group's architectures."""
    if model not in MODEL_GROUPS:
        return [model]
    return [f"{model}/{name}" for name in MODEL_GROUPS[model].architectures]


def _model(name: str) -> nn.Module:
    """Build a backbone with a linear head, or the client model of "group/architecture"."""
    _, in_group, architecture = name.partition("/")
    if not in_group:
        return build_model(name, "linear", CHANNELS, SIDE, CLASSES, seed=0)
    extractor = build_heterogeneous_extractor(architecture, CHANNELS, SIDE, _FEATURES)
    model = Model(extractor, build_head("linear", _FEATURES, CLASSES, seed=0))
    return model.to(memory_format=torch.channels_last)


def plain_images_per_second(
    model_name: str, layout: Layout, batch_size: int, seconds: float
) -> float:
    """Return the summed images per second of a layout's processes, which start together.

    Raises:
        RuntimeError: a process ended without a result.
    """
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(layout.processes), context.Queue()
    workers = [
        context.Process(
            target=_plain_worker,
            args=(model_name, layout, batch_size, seconds, barrier, results),
            daemon=True,
        )
        for _ in range(layout.processes)
    ]
    for worker in workers:
        worker.start()
    try:
        rates = [results.get(timeout=_START_UP_SECONDS + 2 * seconds) for _ in workers]
    except queue.Empty:
        raise RuntimeError("a process of the plain loop gave no result") from None
    finally:
        for worker in workers:
            worker.join(10)
            worker.kill()
    failed = [rate for rate in rates if isinstance(rate, str)]
    if failed:
        raise RuntimeError(f"the plain loop failed: {failed[0]}")
    return float(sum(rates))


def _plain_worker(
    model_name: str, layout: Layout, batch_size: int, seconds: float, barrier: Any, results: Any
) -> None:
    """Train in a process of its own, and report images per second or the error."""
    try:
        torch.set_num_threads(layout.threads)
        set_float32_precision("fp32")
        if layout.tuned:
            keep_memory()
        rate: float | str = train_plainly(
            model_name, batch_size, layout, seconds, lambda: barrier.wait(_START_UP_SECONDS)
        )
    except Exception as error:
        barrier.abort()
        rate = repr(error)
    results.put(rate)


def _wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()
