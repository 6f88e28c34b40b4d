"""FedMargin: a hinge loss on the logits, bounded client updates, and a server with a step length.

It has a loss, a client, a strategy and two keys of its own. The method is invented for this
example; use it as a pattern, not in a comparison.
"""

from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from clients.base import LocalClient
from clients.training.objective import BASE_LOSSES, Step
from clients.update import Update
from fedapp.core.keys import Key, Positive
from fedapp.methods import ClientSpec, LossSpec, Method, ServerSpec
from strategies.aggregate import Arrays
from strategies.fedavg import FedAvg


def margin_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean multi-class hinge loss, max(0, 1 - z_y + z_c) over c != y; logits [B, C]."""
    return F.multi_margin_loss(logits, labels)


def _of_step(step: Step) -> torch.Tensor:
    return margin_loss(step.logits, step.labels)


BASE_LOSSES["margin"] = _of_step


class BoundedClient(LocalClient):
    """Sends a model that lies at most `radius` away from the received one, in L2."""

    def __init__(self, *args: Any, radius: float, **kwargs: Any) -> None:
        """Take the arguments of `LocalClient` and the radius."""
        super().__init__(*args, **kwargs)
        self.radius = radius

    def finish(self, received: Arrays, update: Update, lr: float) -> None:
        """Shorten the update of the trained tensors to the radius."""
        length = float(np.sqrt(update.squared_distance))
        if length > self.radius:
            share = np.float32(self.radius / length)
            for name in self.trained:
                moved = update.shared[name] - received[name]
                update.shared[name] = received[name] + share * moved


class SteppingServer(FedAvg):
    """Moves from the received model towards the mean by `step_length`."""

    def __init__(self, *args: Any, step_length: float, **kwargs: Any) -> None:
        """Take the arguments of `FedAvg` and the step length."""
        super().__init__(*args, **kwargs)
        self.step_length = np.float32(step_length)

    def server_update(self, received: Arrays, mean: Arrays) -> Arrays:
        """Return w_g + step_length (mean - w_g) of the trained tensors; buffers are averaged."""
        moved = {n: received[n] + self.step_length * (mean[n] - received[n]) for n in self.trained}
        self.report.metrics["server_step"] = float(self.step_length)
        return {**mean, **moved}


FEDMARGIN = Method(
    "Hinge loss, bounded updates and a server step length",
    "an example of fedapp",
    loss=LossSpec("margin"),
    client=ClientSpec(BoundedClient, {"radius": "fedmargin-radius"}),
    server=ServerSpec(SteppingServer, {"step_length": "fedmargin-step"}),
    keys={
        "fedmargin-radius": Key(Positive, 5.0, "FedMargin's largest update of a client, in L2"),
        "fedmargin-step": Key(Positive, 1.0, "FedMargin's step length of the server"),
    },
)
