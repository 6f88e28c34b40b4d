"""FedALA: before its training a client learns how much of the received model's top it takes."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clients.arrays import Arrays
from clients.keeping import KeepingClient
from clients.training.arrays import load_arrays
from clients.training.local_training import Batches, TrainingResult, in_bfloat16, step_of
from clients.training.model_slot import copy_weights
from clients.update import Update

_SHARES = "share."  # before the names of the top layers' shares in a client's state
_LEARNED = "learned"  # the name of the mark there that shares have been learned
_STEADY, _LOSSES = 0.1, 10  # the first learning ends when so many losses deviate less
_MOST_EPOCHS = 100  # of the first learning


class FedALAClient(KeepingClient):
    """Starts from w_i + (w_g - w_i) * s in the top layers, and from w_g below; trains all of it.

    w_i are these layers of the client's last model, and s holds a share in 0..1 for each of their
    parameters: s <- s - eta grad(s) of the loss on a part of the training images, one epoch in
    every round. Shares start at 1. Their first learning lasts until the standard deviation of the
    last ten epochs' losses is below 0.1. The client keeps w_i and s, and predicts with the mixture
    that its next training would start from. One that has never trained takes the received model.
    Source: FedALA (Zhang J. et al. 2023, AAAI), algorithm 1; the first learning as in its code.
    """

    takes_regulariser = False
    kept = "the top of its model"

    def __init__(self, *args: Any, eta: float, part: float, layers: int, **kwargs: Any) -> None:
        """Prepare a client.

        Args:
            args, kwargs: as `LocalClient`.
            eta: the learning rate of the shares.
            part: the part of the client's training images that the shares are learned on.
            layers: the number of top layers with shares, the head included.
        """
        super().__init__(*args, **kwargs)
        self.eta, self.part = eta, part
        self.top = _top_layers(list(self.trained), layers)
        self._shares = {name: torch.ones_like(self.trained[name]) for name in self.top}
        self._learned = False  # whether the shares are no longer those of the start

    def run(self, server_round: int, lr: float) -> TrainingResult:
        """Mix the received and the last model, and train the mixture."""
        self._mix(self.data.tuning(server_round))
        return super().run(server_round, lr)

    def finish(self, received: Arrays, update: Update, lr: float) -> None:
        """Keep the trained top layers and their shares."""
        super().finish(received, update, lr)
        update.state[_LEARNED] = np.array([self._learned])

    def state_bytes(self) -> int:
        """Return the size of the top layers, their shares and the mark."""
        return super().state_bytes() + 1

    def own_tensors(self) -> dict[str, Tensor]:
        """Return the top layers of the model as it is now, and their shares."""
        return {name: self.trained[name] for name in self.top} | self._named_shares()

    def personalise(self, server_round: int, lr: float) -> None:
        """Mix the received and the last model as before a training."""
        self._mix(self.data.tuning(server_round))

    def _mix(self, epoch: Callable[[], Batches]) -> None:
        """Learn the shares and load the mixture into the model, if there is a last model."""
        if not self.stored_state:
            return
        received = [self.trained[name].detach().clone() for name in self.top]
        last = [torch.empty_like(tensor) for tensor in received]
        load_arrays(dict(zip(self.top, last, strict=True)), self.stored_state)
        ways = [new - old for new, old in zip(received, last, strict=True)]
        load_arrays(self._named_shares(), self.stored_state)
        first = not self.stored_state[_LEARNED].item()
        mixed = self._learn(list(self._shares.values()), last, ways, epoch, first)
        self._learned = True
        with torch.no_grad():
            for name, tensor in zip(self.top, mixed, strict=True):
                self.trained[name].copy_(tensor)

    def _named_shares(self) -> dict[str, Tensor]:
        return {_SHARES + name: share for name, share in self._shares.items()}

    def _learn(
        self,
        shares: list[Tensor],
        last: list[Tensor],
        ways: list[Tensor],
        epoch: Callable[[], Batches],
        first: bool,
    ) -> list[Tensor]:
        """Learn the shares, in place; return the mixture's top layers, last + way * share.

        The mixture is the process's model "mixture", whose normalisation statistics are discarded.
        """
        model = self.slot.spare("mixture")
        copy_weights(self.model, model)
        model.train()
        mixed = [model.get_parameter(name).requires_grad_() for name in self.top]
        chosen = self._some(epoch())
        batches = list(chosen) if first else chosen  # kept: the losses of all epochs are of these
        losses: list[float] = []
        loss = torch.zeros(())  # of a client without a full batch
        while not losses or (first and len(losses) < _MOST_EPOCHS and not _steady(losses)):
            for images, labels in batches:
                _set(mixed, last, ways, shares)
                with in_bfloat16(images.device.type, self.settings.precision == "bf16"):
                    loss = self.objective(step_of(model, self.objective, images, labels))
                slopes = torch.autograd.grad(loss, mixed, materialize_grads=True)
                for share, way, slope in zip(shares, ways, slopes, strict=True):
                    share.sub_(self.eta * slope * way).clamp_(0.0, 1.0)
            losses.append(float(loss.detach()))
        _set(mixed, last, ways, shares)
        return [tensor.requires_grad_(False) for tensor in mixed]

    def _some(self, batches: Batches) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield batches until they hold the part of the client's images, at least one batch."""
        left = self.part * self.data.num_examples
        for images, labels in batches:
            if left <= 0:
                return
            left -= len(labels)
            yield images, labels


def _top_layers(names: list[str], layers: int) -> list[str]:
    """Return the parameters of the last modules that have some, in the order of `names`."""
    modules = list(dict.fromkeys(name.rpartition(".")[0] for name in names))[-layers:]
    return [name for name in names if name.rpartition(".")[0] in modules]


def _steady(losses: list[float]) -> bool:
    """Return whether more than ten losses are there and the last ten hardly differ."""
    return len(losses) > _LOSSES and float(np.std(losses[-_LOSSES:])) < _STEADY


@torch.no_grad()
def _set(mixed: list[Tensor], last: list[Tensor], ways: list[Tensor], shares: list[Tensor]) -> None:
    """Set each mixed tensor to last + way * share."""
    torch._foreach_copy_(mixed, last)
    torch._foreach_addcmul_(mixed, ways, shares)
