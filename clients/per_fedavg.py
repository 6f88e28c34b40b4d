"""Per-FedAvg: the clients meta-train a model that one step adapts to a single client.

A meta-step takes two batches. A step on the first gives temporary weights. The gradient of the
second batch at these weights is applied to the original weights.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from clients.base import LocalClient
from clients.training.displacement import displaced
from clients.training.local_training import Batches, Forward, TrainingResult, backward, train
from clients.training.model_slot import copy_weights
from clients.training.objective import Objective
from clients.training.parts import ALL, training_only


class PerFedAvgClient(LocalClient):
    """w' = w - a grad(w; b1); w <- w - b grad(w'; b2): first-order, with a = the round's lr.

    The outer rate b falls in proportion to the local one, unless `constant`. SGD has no weight
    decay, and only the outer step has momentum. Before its evaluation a client takes one inner step
    on its training data, or trains `adapt_epochs` epochs with plain SGD.
    Source: Per-FedAvg (Fallah et al. 2020, NeurIPS), algorithm 1, variant (FO).
    """

    unread_settings = ("weight-decay",)

    def __init__(
        self,
        *args: Any,
        outer_lr: float,
        constant: bool,
        first_lr: float,
        adapt_epochs: int,
        **kwargs: Any,
    ) -> None:
        """Prepare a client.

        Args:
            args, kwargs: as `LocalClient`.
            outer_lr: b of round 1.
            constant: keep b constant, as the reference code does.
            first_lr: local learning rate of round 1; b falls by the ratio of the current one to it.
            adapt_epochs: of the personal model; 0: a single step.
        """
        super().__init__(*args, **kwargs)
        self.outer_lr, self.constant, self.first_lr = outer_lr, constant, first_lr
        self.adapt_epochs = adapt_epochs

    def run(self, server_round: int, lr: float) -> TrainingResult:
        """Meta-train the model in place."""
        self._inner_lr = lr
        outer = self.outer_lr * (1.0 if self.constant else lr / self.first_lr)
        return train(
            self.model,
            self.frozen_models(),
            self.objective,
            self._pairs_of(self.data.training(server_round)),
            outer,
            replace(self.settings, weight_decay=0.0, graphs=False),
            self.gradients,
        )

    def gradients(self, forward: Forward, objective: Objective) -> Tensor:
        """Set the gradients of a pair's second half at the weights after a step on its first."""
        backward(partial(forward, slice(None, self._first)), objective)
        parameters = [p for p in self.model.parameters() if p.grad is not None]
        steps = [-self._inner_lr * p.grad for p in parameters if p.grad is not None]
        with displaced(parameters, steps):
            return backward(partial(forward, slice(self._first, None)), objective)

    def personalise(self, server_round: int, lr: float) -> None:
        """Adapt a copy of the received model on the client's training data."""
        own, epoch = self.slot.spare("own"), self.data.tuning(server_round)
        self.copy_to_teacher()
        copy_weights(self.model, own)
        plain = replace(
            self.settings, epochs=self.adapt_epochs or 1, momentum=0.0, weight_decay=0.0
        )
        batches = epoch if self.adapt_epochs else lambda: [next(iter(epoch()))]
        with training_only(own, ALL):
            train(own, self.frozen_models(), self.objective, batches, lr, plain)
        self.model: nn.Module = own

    def _pairs_of(self, epoch: Callable[[], Batches]) -> Callable[[], Batches]:
        """Join every two batches; a single last batch becomes both halves of its pair."""

        def pairs() -> Iterator[tuple[Tensor, Tensor]]:
            batches = iter(epoch())
            for images, labels in batches:
                more_images, more_labels = next(batches, (images, labels))
                self._first = len(labels)
                yield torch.cat((images, more_images)), torch.cat((labels, more_labels))

        return pairs
