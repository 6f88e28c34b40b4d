"""FedCurv's clients: a penalty pulls important parameters to the values of the other clients.

The penalty's gradient costs one multiply-add of the parameters and one subtraction per step. The
importances cost a few backward passes after training.
"""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from clients.arrays import Arrays
from clients.base import LocalClient
from clients.state.store import StateError
from clients.training.arrays import to_arrays
from clients.training.local_training import Forward
from clients.training.objective import Objective
from clients.update import Update

IMPORTANCE, WEIGHTED, OF = "importance", "importance-weighted", "importance-of"
_STORED = {IMPORTANCE: "u/", WEIGHTED: "v/"}  # their prefixes in the client's state


class FedCurvClient(LocalClient):
    """Trains loss + lambda (sum P w^2 - 2 sum Q w), P and Q summed over the other clients.

    The other clients are those of the last round, or with `accumulate` all that have trained so
    far. P = sum_j u_j and Q = sum_j u_j w_j, u_j the mean of squared mini-batch gradients of the
    cross-entropy (the diagonal Fisher information, as the FedNTD authors' code has it), or of each
    example's squared gradient. The client keeps its own u_j and u_j w_j and subtracts them from the
    sums that the server sends. With `accumulate` it also subtracts them from what it sends, because
    the server's sums contain them already. The reported training loss excludes the penalty.
    Source: Shoham et al. 2019, NeurIPS workshop, equation 5.
    """

    kept_copies = 2
    recordable = True

    def __init__(
        self, *args: Any, weight: float, samples: int, per_sample: bool, accumulate: bool,
        **kwargs: Any,
    ) -> None:  # fmt: skip
        """Prepare a client.

        Args:
            args, kwargs: as `LocalClient`.
            weight: lambda.
            samples: number of training examples after which the importance estimate ends.
            per_sample: square the gradients of single examples, one backward pass each, instead of
                those of mini-batches.
            accumulate: the server's sums are over all clients that have trained so far.
        """
        super().__init__(*args, **kwargs)
        self.weight, self.samples, self.per_sample = weight, samples, per_sample
        self.accumulate = accumulate

    def prepare(self, server_round: int) -> None:
        """Compute 2 lambda P and 2 lambda Q of the others; in round 1 there are none."""
        stored = self.stored_state
        counted = bool(self.extras) and self.client in self.extras[OF]["clients"]
        if counted and not stored:
            raise StateError(
                "the server's sums contain this client's importances, which are lost here: restore "
                "its state folder, because FedCurv cannot start a client afresh"
            )
        self._own_part = stored if counted else {}  # its part of the sums
        self._pulls = bool(self.extras) and self.weight > 0
        if self._pulls:
            self._curvature = self._others(IMPORTANCE, not_negative=True)
            self._target = self._others(WEIGHTED, not_negative=False)

    def gradients(self, forward: Forward, objective: Objective) -> Tensor:
        """Set the gradients of one batch: of the loss, and 2 lambda (P w - Q)."""
        loss = super().gradients(forward, objective)
        if self._pulls:
            gradients = self.trained_gradients()
            parameters = [tensor.detach() for tensor in self.trained.values()]
            torch._foreach_addcmul_(gradients, parameters, self._curvature)
            torch._foreach_sub_(gradients, self._target)
        return loss

    def finish(self, received: Arrays, update: Update, lr: float) -> None:
        """Send u and u w of the trained model, or their changes, and keep them."""
        u = self.importance()
        parts = {IMPORTANCE: u, WEIGHTED: {name: u[name] * update.shared[name] for name in u}}
        update.state = {
            _STORED[group] + n: array
            for group, arrays in parts.items()
            for n, array in arrays.items()
        }
        changes = {group: self._minus_own_part(group, arrays) for group, arrays in parts.items()}
        update.groups = changes if self.accumulate else parts

    def importance(self) -> Arrays:
        """Return the mean over mini-batches or examples of each parameter's squared gradient.

        If BatchNorm uses batch statistics, an example's gradient is that of its loss in its batch.
        """
        parameters = list(self.trained.values())
        depends_on_batch = _depends_on_batch(self.model)
        reduction = "none" if self.per_sample else "mean"
        squares = [torch.zeros_like(tensor, requires_grad=False) for tensor in parameters]
        self.model.eval()
        examples = count = 0
        for inputs, labels in self.data.training(self.server_round)():
            size = 1 if self.per_sample and not depends_on_batch else len(labels)
            for images, own in zip(inputs.split(size), labels.split(size), strict=True):
                losses = F.cross_entropy(self.model(images)[1], own, reduction=reduction)
                for loss in losses.reshape(-1):
                    gradients = torch.autograd.grad(
                        loss, parameters, retain_graph=self.per_sample, materialize_grads=True
                    )
                    torch._foreach_addcmul_(squares, gradients, gradients)
                    count += 1
            examples += len(labels)
            if examples >= self.samples:
                break
        torch._foreach_div_(squares, max(count, 1))
        return to_arrays(dict(zip(self.trained, squares, strict=True)))

    def _others(self, group: str, not_negative: bool) -> list[Tensor]:
        """Return 2 lambda times a sum without this client's own part.

        Rounding can leave a sum of squares just below 0, and then weights would run away from their
        target: `not_negative` sets such values to 0.
        """
        rest = self._minus_own_part(group, self.extras[group])
        factor, least = np.float32(2 * self.weight), 0.0 if not_negative else -np.inf
        return self.on_device({n: factor * np.maximum(rest[n], least) for n in self.trained})

    def _minus_own_part(self, group: str, arrays: Arrays) -> Arrays:
        """Return the arrays minus this client's own part, if the sums have it."""
        own, prefix = self._own_part, _STORED[group]
        return {n: array - own[prefix + n] for n, array in arrays.items()} if own else arrays


def _depends_on_batch(model: torch.nn.Module) -> bool:
    """Return whether an output depends on the other examples of its batch, in evaluation too."""
    norms = (m for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d))
    return any(not norm.track_running_stats for norm in norms)
