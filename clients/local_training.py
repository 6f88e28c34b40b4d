"""The one hot loop: E epochs of SGD on one client's data.

Every method trains through this loop. It does no per-sample work, waits for the device once per
epoch, and takes everything it needs as arguments, so that it can be read, timed and tested alone.
"""

import math
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from clients.objective import Objective, Step
from clients.sgd import FusedSGD

Batches = Iterable[tuple[Tensor, Tensor]]


class LossDiverged(ArithmeticError):  # noqa: N818 - an outcome of training, not a program error
    """The training loss or the trained model is not finite."""


@dataclass(frozen=True)
class LocalSettings:
    """The local optimiser, as the server's configuration fixes it."""

    epochs: int
    momentum: float = 0.9
    weight_decay: float = 0.0
    clip_norm: float = 0.0  # 0: no clipping
    precision: str = "fp32"


@dataclass(frozen=True)
class TrainingResult:
    """What one client's training took and gave."""

    loss: float  # mean over all steps
    steps: int
    images: int
    seconds: float


def train(
    model: nn.Module,
    teacher: nn.Module | None,
    objective: Objective,
    epoch: Callable[[], Batches],
    lr: float,
    settings: LocalSettings,
) -> TrainingResult:
    """Train `model` in place; `teacher` is the received model, frozen and in eval mode.

    `epoch()` returns the batches of one more pass over the data: images [B, channels, H, W] and
    labels [B] on the model's device. The optimiser is new at every call, so momentum never crosses
    rounds (specification G3). Raises `LossDiverged`.
    """
    start = time.perf_counter()
    parameters = _pairs(model, teacher or model)
    watching = teacher if objective.needs_teacher else None
    optimiser = FusedSGD(parameters[0], lr, settings.momentum, settings.weight_decay)
    model.train()
    total = torch.zeros((), device=parameters[0][0].device)
    steps = images = 0
    for _ in range(settings.epochs):
        for inputs, labels in epoch():
            with _autocast(settings.precision, inputs.device.type):
                step = _forward(model, watching, objective, inputs, labels, parameters)
                loss = objective(step)
            _descend(loss, optimiser, settings.clip_norm)
            total += loss.detach()
            steps += 1
            images += len(labels)
        if not math.isfinite(float(total)):
            raise LossDiverged(
                f"the training loss is {float(total)} after {steps} steps at lr {lr:g}"
            )
    return TrainingResult(float(total) / max(steps, 1), steps, images, time.perf_counter() - start)


def _forward(
    model: nn.Module,
    teacher: nn.Module | None,
    objective: Objective,
    inputs: Tensor,
    labels: Tensor,
    parameters: tuple[list[nn.Parameter], list[nn.Parameter]],
) -> Step:
    """Run the local model on a batch, and the received one if it is given."""
    features, logits = model(inputs)
    classifier = model.get_parameter("head.weight")
    step = Step(
        labels, features, logits, classifier, *parameters,
        class_counts=objective.class_counts, tau=objective.tau,
    )  # fmt: skip
    if teacher is None:
        return step
    with torch.no_grad():
        global_features, global_logits = teacher(inputs)
    return replace(step, global_features=global_features, global_logits=global_logits)


def _descend(loss: Tensor, optimiser: FusedSGD, clip_norm: float) -> None:
    """Take one optimiser step along the loss's gradient, clipped to `clip_norm` if that is set."""
    optimiser.zero_grad()
    loss.backward()
    if clip_norm:
        nn.utils.clip_grad_norm_(optimiser.parameters, clip_norm)
    optimiser.step()


def _pairs(model: nn.Module, anchor: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Return the model's trainable parameters, and the same ones of the received model."""
    pairs = zip(model.parameters(), anchor.parameters(), strict=True)
    kept = [pair for pair in pairs if pair[0].requires_grad]
    return [own for own, _ in kept], [received for _, received in kept]


def _autocast(precision: str, device: str) -> AbstractContextManager:
    return torch.autocast(device, torch.bfloat16) if precision == "bf16" else nullcontext()
