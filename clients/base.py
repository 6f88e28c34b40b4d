"""The Flower NumPyClient of every method that needs no client class of its own.

The constructor takes what differs between methods: a model with its head, an objective, data. The
process owns the model and the data, so that building a client for each message takes microseconds.
The client is discarded after the message. A method with a local procedure of its own overrides one
or more of `prepare`, `run`, `gradients`, `finish`, `personalise` and `scores`.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from flwr.client import NumPyClient
from torch import Tensor

from clients.arrays import Arrays
from clients.state import previous_model
from clients.state.memory import Memory
from clients.training.arrays import floating, load_arrays, nbytes, to_arrays, total_distance
from clients.training.evaluation import Score, predict
from clients.training.fine_tuning import fine_tune
from clients.training.local_training import (
    Forward,
    FrozenModels,
    Gradients,
    LossDiverged,
    TrainingResult,
    backward,
    check_finite,
    train,
)
from clients.training.model_slot import ClientData, ModelSlot, copy_weights
from clients.training.objective import Objective
from clients.update import Update

Scalar = bool | bytes | float | int | str


class LocalClient(NumPyClient):
    """One client: a set of examples, and the model and objective it trains them with.

    One object, one message: it has the client's state of one round, and `work` or `evaluate` may
    change what the constructor has set. A second call is an error.
    """

    takes_regulariser: ClassVar[bool] = True  # False: its loss ignores the objective
    unfit_regularisers: ClassVar[Mapping[str, str]] = {}  # name -> why its update would be wrong
    unread_settings: ClassVar[tuple[str, ...]] = ()  # run-config keys that it sets itself
    kept_copies: int = 0  # arrays in its state for each trained parameter, of the same shape
    recordable: bool = False  # whether `graphs` may record its own `gradients`

    def __init__(
        self,
        slot: ModelSlot,
        client: int,
        data: ClientData,
        objective: Objective,
        memory: Memory | None = None,
        extras: Mapping[str, Arrays] | None = None,
    ) -> None:
        """Prepare a client.

        Args:
            slot: the process's models; `work` and `evaluate` overwrite the model's weights.
            client: its number, from 0.
            data: its examples.
            objective: the loss of one batch.
            memory: its stored state; None if the method keeps no state.
            extras: arrays that the server sent in addition to the shared model, by name.
        """
        self.slot, self.client, self.data = slot, client, data
        self.model, self.shared = slot.model, dict(slot.shared)
        self.objective, self.settings = objective, slot.settings
        self.memory = memory
        self.extras = dict(extras or {})
        self.velocity: list[Tensor] | None = None  # of SGD; None: zero in each round
        self.server_round = 0  # in which it trains, or after which it is tested
        self._used = False  # whether it has had its message

    # -- what a method may override -------------------------------------------------------------

    def prepare(self, server_round: int) -> None:
        """Load what the training needs; the received model is already loaded."""

    def run(self, server_round: int, lr: float) -> TrainingResult:
        """Train the model in place on this client's data for `server_round`, by `gradients`."""
        rule, settings = self._gradients(), self.settings
        recordable = rule is backward or self.recordable
        settings = replace(settings, graphs=settings.graphs and recordable)
        epoch, frozen = self.data.training(server_round), self.frozen_models()
        return train(self.model, frozen, self.objective, epoch, lr, settings, rule, self.velocity)

    def gradients(self, forward: Forward, objective: Objective) -> Tensor:
        """Set the gradients of one batch and return its loss."""
        return backward(forward, objective)

    def finish(self, received: Arrays, update: Update, lr: float) -> None:
        """Add to the update what the method sends and keeps beside the trained tensors."""

    def state_bytes(self) -> int:
        """Return the size in bytes of the state that this client keeps between rounds."""
        previous = nbytes(floating(self.model).values()) if self.objective.needs_previous else 0
        return previous + self.kept_copies * nbytes(self.trained.values())

    def personalise(self, server_round: int, lr: float) -> None:
        """Turn the received model into this client's personal model, before its evaluation."""
        if self.slot.tuning:
            epoch = self.data.tuning(server_round)
            self.model = fine_tune(self.slot, self.slot.tuning, self.data.class_counts, epoch)

    def scores(self) -> dict[str, float]:
        """Return the scores on the client's test split: "loss", "accuracy", "examples" and more."""
        score, scale = Score(), self.logit_scale()
        for _, logits, labels in predict(self.model, self.data.test()):
            score.add(logits * scale, labels)
        return {"loss": score.loss, "accuracy": score.accuracy, "examples": score.count}

    def logit_scale(self) -> Tensor | float:
        """Return the factor of the logits in the personal prediction: one number, or [C]."""
        return 1.0

    # -- one round ------------------------------------------------------------------------------

    def work(self, received: Arrays, server_round: int, lr: float) -> Update:
        """Train from the received tensors, which are named and ordered as `shared`.

        Torch's own random numbers are those of the run's seed, the client and the round.

        Raises:
            LossDiverged: the loss or the trained model is not finite.
            StateError: the client's state cannot be read.
            RuntimeError: the object has had its message.
        """
        self._begin(list(received.values()), server_round)
        with self.slot.seeded(self.data.seed(server_round)):
            self.prepare(server_round)
            self.copy_to_teacher()
            result = self.run(server_round, lr)
            update = Update(to_arrays(self.shared), result, self.data.num_examples)
            update.squared_distance = total_distance(received, update.shared, self.trained)
            self._check_finite(update, result.steps)
            keeps_previous = self.objective.needs_previous
            previous = previous_model.taken_from(self.model) if keeps_previous else {}
            self.finish(received, update, lr)
        update.state = {**update.state, **previous}
        update.reinitialised = self.reinitialised
        return update

    def _begin(self, parameters: list[np.ndarray], server_round: int) -> None:
        """Load the received tensors for the object's only message; RuntimeError at a second one."""
        if self._used:
            raise RuntimeError("a client object serves one message: make a new one for the next")
        self._used, self.server_round = True, server_round
        self.set_parameters(parameters)

    # -- Flower's interface ---------------------------------------------------------------------

    def get_parameters(self, config: dict[str, Scalar]) -> list[np.ndarray]:
        """Return the shared tensors of the model as it is now."""
        return list(to_arrays(self.shared).values())

    def set_parameters(self, parameters: list[np.ndarray]) -> None:
        """Load received tensors in place."""
        self._check_number(parameters)
        load_arrays(self.shared, dict(zip(self.shared, parameters, strict=True)))

    def fit(
        self, parameters: list[np.ndarray], config: dict[str, Scalar]
    ) -> tuple[list[np.ndarray], int, dict[str, Scalar]]:
        """Train from the received model; config: "server_round" and "lr". Raises `LossDiverged`.

        This is for servers that only average models. `work` returns everything that a method sends.
        """
        self._check_number(parameters)
        received = dict(zip(self.shared, parameters, strict=True))
        update = self.work(received, int(config["server_round"]), float(config["lr"]))
        metrics: dict[str, Scalar] = {
            "loss": update.training.loss,
            "steps": update.training.steps,
            "seconds": update.training.seconds,
            "squared_distance": update.squared_distance,
            "effective_steps": update.effective_steps,
            "images": update.training.images,
            "reinitialised": update.reinitialised,
        }
        return list(update.shared.values()), update.examples, metrics

    def evaluate(
        self, parameters: list[np.ndarray], config: dict[str, Scalar]
    ) -> tuple[float, int, dict[str, Scalar]]:
        """Personalise the received model and evaluate it on the client's test split.

        Returns mean loss, number of examples, and the other scores ("accuracy", ...). Torch's own
        random numbers are those of a training of the same round.

        Raises:
            LossDiverged: the loss is not finite, so that the predictions say nothing.
            StateError: the client's state cannot be read.
            RuntimeError: the object has had its message.
        """
        self._begin(parameters, int(config.get("server_round", 1)))
        lr = float(config.get("lr", 0.0))
        with self.slot.seeded(self.data.seed(self.server_round)):
            self.personalise(self.server_round, lr)
            scores = self.scores()
        loss, count = scores.pop("loss"), int(scores.pop("examples"))
        if not math.isfinite(loss):
            raise LossDiverged(f"the loss of its model is {loss} on its test images")
        return loss, count, dict(scores)

    # -- what is kept between rounds -------------------------------------------------------------

    @cached_property
    def _stored(self) -> previous_model.Stored:
        """What was stored when this round began."""
        return previous_model.split((self.memory.load() if self.memory else None) or {})

    @property
    def stored_state(self) -> Arrays:
        """The method's state when this round began, {} if there is none; raises `StateError`."""
        return self._stored.own

    @property
    def reinitialised(self) -> bool:
        """Whether the state of its earlier rounds was lost, so that it started without one."""
        return self.memory is not None and self.memory.known and not any(self._stored)

    @property
    def evaluated_without_state(self) -> bool:
        """Whether the evaluation needed the client's state, and that state was lost."""
        return "_stored" in vars(self) and self.reinitialised

    def save_state(self, update: Update) -> None:
        """Store the update's state, once the update is known to be usable; raises `StateError`."""
        if self.memory is not None and update.state:
            self.memory.save(update.state)

    # -- for subclasses -------------------------------------------------------------------------

    @cached_property
    def trained(self) -> dict[str, Tensor]:
        """The shared tensors that training changes, by name: parameters, not buffers."""
        return {name: tensor for name, tensor in self.shared.items() if tensor.requires_grad}

    def trained_gradients(self) -> list[Tensor]:
        """Return the gradients of the current batch, in the order of `trained`.

        A parameter that the loss does not depend on gets a gradient of zeros.
        """
        for tensor in self.trained.values():
            tensor.grad = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
        return [tensor.grad for tensor in self.trained.values() if tensor.grad is not None]

    def on_device(self, arrays: Arrays) -> list[Tensor]:
        """Return arrays as tensors, with the device and layout of the trained parameters."""
        tensors = {n: torch.empty_like(t, requires_grad=False) for n, t in self.trained.items()}
        load_arrays(tensors, arrays)
        return list(tensors.values())

    def _gradients(self) -> Gradients:
        """Return the rule for the gradients: `backward` itself where no subclass has its own."""
        inherited = getattr(self.gradients, "__func__", None) is LocalClient.gradients
        return backward if inherited else self.gradients

    def copy_to_teacher(self) -> None:
        """Copy the model to the teacher: the received part and the client's own part.

        This must happen before any training on an objective with a regulariser. It must also happen
        after the client's own part is loaded: until then the model has the own part of the client
        that the process served before.
        """
        if self.objective.needs_global_weights:
            copy_weights(self.model, self.slot.teacher)

    def frozen_models(self) -> FrozenModels:
        """Return the frozen models that the objective needs."""
        teacher = self.slot.teacher if self.objective.needs_global_weights else None
        previous = None
        if self.objective.needs_previous:
            previous = previous_model.load(self.slot, self._stored.previous, self.client)
        return FrozenModels(teacher, previous)

    def _check_number(self, parameters: list[np.ndarray]) -> None:
        if len(parameters) != len(self.shared):
            raise ValueError(f"received {len(parameters)} arrays instead of {len(self.shared)}")

    def _check_finite(self, update: Update, steps: int) -> None:
        """Raise `LossDiverged` unless all shared tensors are finite.

        A finite distance needs finite trained tensors, so only the others are read again.
        """
        known = self.trained if math.isfinite(update.squared_distance) else ()
        others = {name: array for name, array in update.shared.items() if name not in known}
        check_finite(others, "the model", steps)
