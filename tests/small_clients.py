"""Clients and strategies whose model is one vector, for hand-checked steps of the methods."""

from dataclasses import fields
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from clients.base import LocalClient
from clients.state.previous_model import Stored
from clients.training.local_training import LocalSettings, TrainingResult
from clients.training.model_slot import ClientData, ModelSlot
from clients.training.objective import Objective, Step
from clients.training.sgd import FusedSGD
from clients.update import Update
from strategies.rounds.federation import Federation


class VectorModel(nn.Module):
    """A model that is one parameter vector "w"."""

    def __init__(self, values: Any) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(values, dtype=torch.float32))


class Inner(Objective):
    """The loss <g, w>, whose gradient is the given g."""

    def __call__(self, step: Step) -> torch.Tensor:
        return (step.features * step.logits).sum()


class VectorClient:
    """A client of the project whose model is one vector; tests call its hooks one by one."""

    def __init__(
        self, kind: type[LocalClient], w: Any, state: Any = None, extras: Any = None,
        settings: LocalSettings | None = None, server_round: int = 2, **options: Any,
    ) -> None:  # fmt: skip
        """Receive `w`, recall `state`, and prepare."""
        model = VectorModel(w)
        self.settings = settings or LocalSettings(1, momentum=0.0)
        slot = ModelSlot(model, dict(model.named_parameters()), self.settings,
                          lambda: VectorModel(w))  # fmt: skip
        data = ClientData(**dict.fromkeys(field.name for field in fields(ClientData)))
        self.client = kind(slot, 0, data, Inner(), None, _single(extras or {}), **options)
        self.client.__dict__["_stored"] = Stored(_single({"": state or {}})[""], {})
        self.received = np.array(w, np.float32)
        self.client.server_round = server_round
        self.client.prepare(server_round)

    @property
    def w(self) -> nn.Parameter:
        """The parameter."""
        return self.client.model.get_parameter("w")

    def gradient(self, of_loss: Any) -> np.ndarray:
        """Return the gradient that a step takes when the loss has this one."""
        self.w.grad = None
        given = torch.tensor(of_loss, dtype=torch.float32)
        forward = partial(Step, torch.zeros(1), given, self.w, self.w)
        self.client.gradients(forward, Inner())
        assert self.w.grad is not None
        return self.w.grad.numpy().copy()

    def step(self, of_loss: Any, lr: float) -> np.ndarray:
        """Take one step of SGD, and return the vector after it."""
        optimiser = FusedSGD([self.w], lr, self.settings.momentum, self.settings.weight_decay)
        self.gradient(of_loss)
        optimiser.step()
        return self.w.detach().numpy().copy()

    def finish(self, trained: Any, steps: int, lr: float) -> Update:
        """Finish as if training had ended at `trained`; returns what is sent and kept."""
        with torch.no_grad():
            self.w.copy_(torch.tensor(trained))
        after = {"w": np.array(trained, np.float32)}
        update = Update(after, TrainingResult(0.0, steps, steps, 0.0), examples=1)
        self.client.finish({"w": self.received}, update, lr)
        return update


def strategy_of(kind: Any, clients: int = 3, weights: str = "size", **options: Any) -> Any:
    """Return a strategy for a model of one vector "w"."""
    federation = Federation(dict.fromkeys(range(clients), 0), {})
    return kind(federation, lambda r: [], lambda r: 0.1, ["w"], weights=weights, **options)


def _single(groups: Any) -> Any:
    return {
        name: {n: np.array(array, np.float32) for n, array in arrays.items()}
        for name, arrays in groups.items()
    }
