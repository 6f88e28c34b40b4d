"""Ditto: every client trains the global model and a personal model.

Both are trained on the same batches. The personal model is never sent, except with `reference`:
that option reproduces the mistakes of a widely used implementation, which produced the published
figures.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from clients.arrays import Arrays
from clients.keeping import KeepingClient
from clients.training.arrays import floating
from clients.training.local_training import Batches, Forward, TrainingResult, backward, train
from clients.training.objective import Objective
from clients.training.parts import ALL, training_only
from clients.update import Update


class DittoClient(KeepingClient):
    """v <- v - lr (grad of the loss at v + lambda (v - w_g)) for the local epochs; v is kept.

    The pull to w_g does not enter the momentum. The global model is trained as in FedAvg. A client
    that has never trained personalises the initial model when it is evaluated.
    Source: Ditto (Li T. et al. 2021, ICML), algorithm 1.
    """

    kept = "the personal model"

    def __init__(
        self, *args: Any, pull: float, reference: bool, first_lr: float, **kwargs: Any
    ) -> None:
        """Prepare a client.

        Args:
            args, kwargs: as `LocalClient`.
            pull: lambda, the strength of the pull towards the global model.
            reference: follow the reference code: pull towards the locally trained model, send the
                personal model, and keep the personal model's learning rate constant.
            first_lr: learning rate of round 1, for `reference`.
        """
        super().__init__(*args, **kwargs)
        self.pull, self.reference, self.first_lr = pull, reference, first_lr

    def run(self, server_round: int, lr: float) -> TrainingResult:
        """Train the global model, then the personal one."""
        received = _copies(self.model)
        result = super().run(server_round, lr)
        anchor, rate = received, lr
        if self.reference:
            anchor, rate = _copies(self.model), self.first_lr
        self.start_own()
        own = self._train_own(self.data.training(server_round), rate, anchor)
        return replace(
            result, images=result.images + own.images, seconds=result.seconds + own.seconds
        )

    def finish(self, received: Arrays, update: Update, lr: float) -> None:
        """Keep the personal model; raises `LossDiverged` if it is not finite."""
        super().finish(received, update, lr)
        if self.reference:
            update.shared = {name: update.state[name] for name in update.shared}

    def own_tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the personal model, the process's model "own"."""
        return floating(self.slot.spare("own"))

    def personalise(self, server_round: int, lr: float) -> None:
        """Load the personal model; train it first if the client has never trained."""
        self.start_own()
        if not self.stored_state:
            self.copy_to_teacher()
            rate = self.first_lr if self.reference else lr
            self._train_own(self.data.tuning(server_round), rate, _copies(self.model))
        self.model = self.slot.spare("own")

    def _train_own(
        self, epoch: Callable[[], Batches], lr: float, anchor: list[Tensor]
    ) -> TrainingResult:
        """Train the personal model and pull it towards `anchor` in every step."""
        own, parameters = self.slot.spare("own"), list(self.slot.spare("own").parameters())

        def gradients(forward: Forward, objective: Objective) -> Tensor:
            loss = backward(forward, objective)
            move_towards(parameters, anchor, lr * self.pull)
            return loss

        frozen, settings = self.frozen_models(), replace(self.settings, graphs=False)
        with training_only(own, ALL):
            return train(own, frozen, self.objective, epoch, lr, settings, gradients)


@torch.no_grad()
def move_towards(parameters: Sequence[Tensor], anchors: Sequence[Tensor], weight: float) -> None:
    """Move each parameter towards its anchor in place: v <- v - weight (v - anchor).

    Source: Ditto (Li T. et al. 2021, ICML), algorithm 1, its proximal step with weight = lr lambda.
    """
    torch._foreach_sub_(
        list(parameters), torch._foreach_sub(list(parameters), list(anchors)), alpha=weight
    )


def _copies(model: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]
