"""pFedMe: a personal model that a Moreau envelope ties to the shared one."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from clients.ditto import move_towards
from clients.keeping import KeepingClient
from clients.training.arrays import floating
from clients.training.local_training import Batches, FrozenModels, TrainingResult, train
from clients.training.model_slot import copy_weights
from clients.training.parts import ALL, training_only


class PFedMeClient(KeepingClient):
    """For each batch: `steps` steps of theta on f(theta) + lambda / 2 |theta - w|^2, then one of w.

    w <- w - eta lambda (w - theta). Theta starts as w at the beginning of a round, moves at the
    round's learning rate without momentum and weight decay, and goes on from batch to batch. The
    client sends w, with theta's normalisation statistics, keeps theta and predicts with it. A
    client that has never trained does a local update before it is evaluated. Eta falls in
    proportion to the learning rate.
    Source: pFedMe (T. Dinh et al. 2020, NeurIPS), algorithm 1; theta's start as in its code.
    """

    takes_regulariser = False
    kept = "the personal model"
    unread_settings = ("momentum", "weight-decay")

    def __init__(
        self, *args: Any, pull: float, steps: int, outer_lr: float, first_lr: float, **kwargs: Any
    ) -> None:
        """Prepare a client.

        Args:
            args, kwargs: as `LocalClient`.
            pull: lambda, the strength of the pull towards w.
            steps: theta's steps for each batch.
            outer_lr: eta of round 1, the learning rate of w.
            first_lr: theta's learning rate in round 1.
        """
        super().__init__(*args, **kwargs)
        self.pull, self.steps = pull, steps
        self.outer_lr, self.first_lr = outer_lr, first_lr
        self.own = self.slot.spare("own")

    def run(self, server_round: int, lr: float) -> TrainingResult:
        """Train theta in the process's model "own", and w in the model that is sent."""
        return self._update(self.data.training(server_round), lr)

    def own_tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors of theta, the process's model "own"."""
        return floating(self.own)

    def personalise(self, server_round: int, lr: float) -> None:
        """Load theta, or train it if the client never has."""
        if not self.recall_own():
            self._update(self.data.tuning(server_round), lr)
        self.model = self.own

    def _update(self, epoch: Callable[[], Batches], lr: float) -> TrainingResult:
        """Do the local epochs from the received model; the loss is theta's, with the pull."""
        weight = self.outer_lr * lr / self.first_lr * self.pull
        shared, own = list(self.model.parameters()), list(self.own.parameters())
        copy_weights(self.model, self.own)
        total = TrainingResult(0.0, 0, 0, 0.0)
        with training_only(self.own, ALL):
            for _ in range(self.settings.epochs):
                for batch in epoch():
                    total = total.followed_by(self._solve(batch, lr))
                    move_towards(shared, own, weight)
        with torch.no_grad():
            for sent, seen in zip(self.model.buffers(), self.own.buffers(), strict=True):
                sent.copy_(seen)
        return total

    def _solve(self, batch: tuple[torch.Tensor, torch.Tensor], lr: float) -> TrainingResult:
        """Take theta's steps on one batch."""
        objective = replace(self.objective, regulariser="prox", reg_weight=self.pull)
        settings = replace(self.settings, epochs=1, momentum=0.0, weight_decay=0.0, graphs=False)
        frozen = FrozenModels(teacher=self.model)
        return train(self.own, frozen, objective, lambda: [batch] * self.steps, lr, settings)
