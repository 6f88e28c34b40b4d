"""APFL: a client predicts with a mixture of the shared model and a model of its own.

Both are trained on the same batches. The client also learns how much of its own model it takes.
"""

from collections.abc import Container
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from clients.arrays import Arrays
from clients.keeping import KeepingClient
from clients.training.arrays import floating
from clients.training.local_training import Forward, TrainingResult, step_of
from clients.training.objective import Objective
from clients.training.parts import ALL, training_only
from clients.training.sgd import FusedSGD
from clients.update import Update

_SHARE = "alpha"  # the name of the share in a client's state
_OWN = "own."  # before the names of the own model's tensors there


class APFLClient(KeepingClient):
    """w as in FedAvg; v <- v - lr grad_v f(m) at m = alpha v + (1 - alpha) w, for each batch.

    So v moves along alpha grad f(m). With `adaptive`, alpha <- alpha - lr <v - w, grad f(m)> at the
    first batch of every round, cut to 0..1. The client keeps v and alpha. It predicts with
    alpha v + (1 - alpha) w_g; a client that has never trained, with the received model w_g alone.
    Source: APFL (Deng et al. 2020, arXiv 2003.13461), algorithm 1.
    """

    takes_regulariser = False
    kept = "the client's own model"

    def __init__(self, *args: Any, share: float, adaptive: bool, **kwargs: Any) -> None:
        """Prepare a client; `share` is the first alpha. Other arguments as `LocalClient`."""
        super().__init__(*args, **kwargs)
        self.share, self.adaptive = share, adaptive
        self.own, self.mixture = self.slot.spare("own"), self.slot.spare("mixture")

    def run(self, server_round: int, lr: float) -> TrainingResult:
        """Train both models; the images count twice."""
        self.start_own()
        parameters, settings = list(self.own.parameters()), self.settings
        self._sgd = FusedSGD(parameters, lr, settings.momentum, settings.weight_decay)
        self._moves_share = self.adaptive
        self.mixture.train()
        with training_only(self.mixture, ALL):
            names = [name for name, p in self.mixture.named_parameters() if p.requires_grad]
            self._mixed, self._own, self._received = (
                [model.get_parameter(name) for name in names]
                for model in (self.mixture, self.own, self.model)
            )
            result = super().run(server_round, lr)
        self._sgd.zero_grad()  # other clients need the memory
        return replace(result, images=2 * result.images)

    def gradients(self, forward: Forward, objective: Objective) -> Tensor:
        """Set the gradients of the shared model, and take the step of the client's own."""
        step = forward()
        loss = objective(step)
        loss.backward()
        self._mix()
        own = step_of(self.mixture, objective, step.images, step.labels)
        slopes = torch.autograd.grad(objective(own), self._mixed, materialize_grads=True)
        share = self.share
        if self._moves_share:
            self._move_share(slopes)
        for parameter, slope in zip(self._own, slopes, strict=True):
            parameter.grad = share * slope
        if self.settings.clip_norm:
            nn.utils.clip_grad_norm_(self.own.parameters(), self.settings.clip_norm)
        self._sgd.step()
        return loss.detach()

    def finish(self, received: Arrays, update: Update, lr: float) -> None:
        """Keep the own model, its share and the mixture's normalisation statistics."""
        super().finish(received, update, lr)
        update.state[_SHARE] = np.array([self.share])

    def state_bytes(self) -> int:
        """Return the size of the own model, its statistics and its share."""
        return super().state_bytes() + 8

    def personalise(self, server_round: int, lr: float) -> None:
        """Mix the received model with the client's own."""
        if self.recall_own():
            self._mix()
            self.model = self.mixture

    @torch.no_grad()
    def _move_share(self, slopes: tuple[Tensor, ...]) -> None:
        """Take the share's step of this round."""
        pairs = zip(self._own, self._received, slopes, strict=True)
        slope = float(torch.stack([((v - w) * s).sum() for v, w, s in pairs]).sum())
        self.share = min(1.0, max(0.0, self.share - self._sgd.lr * slope))
        self._moves_share = False

    @torch.no_grad()
    def _mix(self) -> None:
        """Set the mixture's parameters: alpha v + (1 - alpha) w."""
        mixed: list[Tensor] = list(self.mixture.parameters())
        own: list[Tensor] = list(self.own.parameters())
        torch._foreach_copy_(mixed, list(self.model.parameters()))
        torch._foreach_lerp_(mixed, own, self.share)
        torch.clear_autocast_cache()

    def own_tensors(self) -> dict[str, Tensor]:
        """Return v, and the mixture's buffers."""
        own = {_OWN + name: tensor for name, tensor in self.own.named_parameters()}
        parameters = dict(self.mixture.named_parameters())
        statistics = floating(self.mixture).items()
        return own | {name: tensor for name, tensor in statistics if name not in parameters}

    def initial_own(self) -> dict[str, Tensor]:
        """Return the initial values of v and of the mixture's buffers."""
        initial = super().initial_own()
        return {**initial, **{_OWN + name: tensor for name, tensor in initial.items()}}

    def recall_own(self, but: Container[str] = ()) -> bool:
        """Load what the client keeps, its share too; return False for a new client."""
        known = super().recall_own(but)
        if known:
            self.share = float(self.stored_state[_SHARE][0])
        return known
