"""The local training loop: E epochs of SGD on one client's data.

Every method uses this loop. It does no per-sample work and waits for the device once per epoch. All
its inputs are arguments, so that it can be read, timed and tested alone.
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from clients.arrays import Arrays
from clients.training.factored import CurrentParameters, FactoredWeight, factored
from clients.training.graphs import replayed
from clients.training.objective import Objective, Step
from clients.training.sgd import FusedSGD

Batches = Iterable[tuple[Tensor, Tensor]]


class Forward(Protocol):
    """Runs the trained model, and the frozen ones that the objective needs, on the current batch.

    Every call is a further pass, in training mode, for which a gradient can be taken.
    """

    def __call__(
        self, part: slice = slice(None), watched: bool = True, images: Tensor | None = None
    ) -> Step:
        """Return what a loss needs of the batch, in float32.

        Args:
            part: the images of the batch that are used, with their labels.
            watched: whether the frozen models run, too; without them the step lacks their outputs.
            images: other images in place of the batch's [B, channels, H, W], with its labels.
        """


Gradients = Callable[[Forward, Objective], Tensor]  # sets the gradients; returns the loss


class LossDiverged(ArithmeticError):  # noqa: N818 - an outcome of training, not a program error
    """The training loss or the trained model is not finite."""


def check_finite(arrays: Arrays, what: str, steps: int) -> None:
    """Raise `LossDiverged` unless every value of a trained model is finite."""
    if not all(np.isfinite(array).all() for array in arrays.values()):
        raise LossDiverged(f"{what} has non-finite values after {steps} steps")


@dataclass(frozen=True)
class LocalSettings:
    """The settings of local training, from the server's configuration."""

    epochs: int
    momentum: float = 0.9
    weight_decay: float = 0.0
    clip_norm: float = 0.0  # 0: no clipping
    precision: str = "fp32"  # or "tf32", "bf16", or "bf16-teacher": bf16 for the frozen models only
    graphs: bool = False  # whether steps on a GPU may be recorded; see clients.training.graphs


@dataclass(frozen=True)
class TrainingResult:
    """The loss and the cost of one client's training."""

    loss: float  # mean over all steps
    steps: int
    images: int  # total over all steps
    seconds: float

    def followed_by(self, other: "TrainingResult") -> "TrainingResult":
        """Return the result of both trainings, one after the other."""
        steps = self.steps + other.steps
        loss = (self.loss * self.steps + other.loss * other.steps) / max(steps, 1)
        images, seconds = self.images + other.images, self.seconds + other.seconds
        return TrainingResult(loss, steps, images, seconds)


@dataclass(frozen=True)
class FrozenModels:
    """Frozen models, in eval mode, that process the same batches as the trained model."""

    teacher: nn.Module | None = None  # the received model
    previous: nn.Module | None = None  # this client's own last model

    @torch.no_grad()
    def forward(self, step: Step, inputs: Tensor, objective: Objective) -> Step:
        """Return the step with the outputs of these models that the objective needs, in float32."""
        if objective.needs_global_outputs and self.teacher is not None:
            features, logits = self.teacher(inputs)
            step = replace(step, global_features=features.float(), global_logits=logits.float())
        if objective.needs_previous and self.previous is not None:
            step = replace(step, previous_features=self.previous(inputs)[0].float())
        return step


def backward(forward: Forward, objective: Objective) -> Tensor:
    """Set the gradients of the objective: the rule of every method without a rule of its own."""
    loss = objective(forward())
    loss.backward()
    return loss.detach()


def train(
    model: nn.Module,
    frozen: FrozenModels,
    objective: Objective,
    epoch: Callable[[], Batches],
    lr: float,
    settings: LocalSettings,
    gradients: Gradients = backward,
    velocity: list[Tensor] | None = None,
) -> TrainingResult:
    """Train the parameters of `model` that require a gradient, in place.

    `epoch()` returns the batches of the next epoch: images [B, channels, H, W] and labels [B] on
    the model's device. `gradients` sets the gradients of one batch. SGD starts from `velocity`
    (zero if None), one tensor per parameter, and changes it. Where no parameter requires a gradient
    nothing is done. Raises `LossDiverged`.
    """
    if not any(parameter.requires_grad for parameter in model.parameters()):
        return TrainingResult(0.0, 0, 0, 0.0)
    start = time.perf_counter()
    model.train()
    with _factored(model, gradients, settings, velocity is None) as large:
        own, received = _trained_parameters(model, frozen.teacher or model)
        optimiser = FusedSGD(own, lr, settings.momentum, settings.weight_decay, velocity, large)
        current = CurrentParameters(own, large)
        models = _Models(model, frozen, objective, (current, received), settings.precision)
        plain = partial(_step, models, gradients, optimiser, settings)
        total = torch.zeros((), device=own[0].device)
        steps = images = 0
        with replayed(plain, total.device) if settings.graphs else nullcontext(plain) as step:
            for number in range(settings.epochs):
                if number:
                    current.settle()  # `epoch` may read the weights
                for inputs, labels in epoch():
                    total += step(inputs, labels)
                    steps += 1
                    images += len(labels)
                _check_loss(float(total), steps, lr)
    return TrainingResult(float(total) / max(steps, 1), steps, images, time.perf_counter() - start)


def _step(
    models: "_Models",
    gradients: Gradients,
    optimiser: FusedSGD,
    settings: LocalSettings,
    inputs: Tensor,
    labels: Tensor,
) -> Tensor:
    """Take a step of SGD on a batch; returns its loss."""
    optimiser.zero_grad()
    with in_bfloat16(inputs.device.type, settings.precision == "bf16"):
        loss = gradients(partial(models.forward, inputs, labels), models.objective)
    if settings.clip_norm:
        nn.utils.clip_grad_norm_(optimiser.parameters, settings.clip_norm)
    optimiser.step()
    return loss


def _check_loss(total: float, steps: int, lr: float) -> None:
    """Raise `LossDiverged` unless the sum of the losses is finite."""
    if not math.isfinite(total):
        raise LossDiverged(f"the training loss is {total} after {steps} steps at lr {lr:g}")


def _factored(
    model: nn.Module, gradients: Gradients, settings: LocalSettings, defer: bool
) -> AbstractContextManager[dict[Tensor, FactoredWeight]]:
    """Let large layers keep their gradients' factors where only the optimiser may need them."""
    if gradients is backward and not settings.clip_norm and settings.precision != "bf16":
        return factored(model, defer)
    return nullcontext({})


@dataclass(frozen=True)
class _Models:
    """The models of a training, what their losses need, and the precision of their passes."""

    model: nn.Module
    frozen: FrozenModels
    objective: Objective
    parameters: tuple[CurrentParameters, list[nn.Parameter]]  # trained ones, and as received
    precision: str

    def forward(
        self,
        inputs: Tensor,
        labels: Tensor,
        part: slice = slice(None),
        watched: bool = True,
        images: Tensor | None = None,
    ) -> Step:
        """Run the models on a batch, as `Forward` says.

        The losses get float32 from every precision: on a CPU, autocast would round log-softmax to
        bfloat16.
        """
        inputs, labels = (inputs if images is None else images)[part], labels[part]
        step = step_of(self.model, self.objective, inputs, labels, self.parameters)
        if not watched:
            return step
        with in_bfloat16(inputs.device.type, self.precision == "bf16-teacher"):
            return self.frozen.forward(step, inputs, self.objective)


def step_of(
    model: nn.Module,
    objective: Objective,
    inputs: Tensor,
    labels: Tensor,
    parameters: tuple[Sequence[Tensor], Sequence[Tensor]] = ((), ()),
) -> Step:
    """Return what a loss needs of a model on a batch: images [B, channels, H, W], labels [B].

    `parameters` are the trainable tensors, and the same as received.
    """
    features, logits = model(inputs)
    return Step(
        labels, features.float(), logits.float(), model.get_parameter("head.weight"), *parameters,
        class_counts=objective.class_counts, tau=objective.tau, options=objective.options,
        images=inputs,
    )  # fmt: skip


def _trained_parameters(
    model: nn.Module, anchor: nn.Module
) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Return the model's trainable parameters and the same parameters of the received model."""
    pairs = zip(model.parameters(), anchor.parameters(), strict=True)
    kept = [pair for pair in pairs if pair[0].requires_grad]
    return [own for own, _ in kept], [received for _, received in kept]


def in_bfloat16(device: str, enabled: bool) -> AbstractContextManager:
    """Return a block in which a kind of device computes in bfloat16, if enabled."""
    return torch.autocast(device, torch.bfloat16) if enabled else nullcontext()
