"""The Flower NumPyClient that does the local work of every method without a class of its own.

What differs between methods is handed in (a model with its head, an objective, data), so a client
is built in microseconds for each message and thrown away after it: the model and the data belong
to the process and stay where they are.
"""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from flwr.client import NumPyClient
from torch import Tensor, nn

from clients.local_training import Batches, LocalSettings, LossDiverged, train
from clients.objective import Objective

Scalar = bool | bytes | float | int | str


class LocalClient(NumPyClient):
    """One client: a set of examples, and the model and objective it trains them with."""

    def __init__(
        self,
        model: nn.Module,
        teacher: nn.Module | None,
        shared: Mapping[str, Tensor],
        objective: Objective,
        settings: LocalSettings,
        training_data: Callable[[int], Callable[[], Batches]],
        test_data: Callable[[], Batches],
        num_examples: int,
    ) -> None:
        """Prepare a client.

        Args:
            model: the process's model; its weights are overwritten by every `fit`.
            teacher: a second model of the same kind, for objectives that look at the received one.
            shared: the tensors of `model` that travel, by name, in the order of `fit`'s lists.
            objective: the loss of one batch.
            settings: the local optimiser.
            training_data: round -> a function that gives the batches of its next epoch.
            test_data: gives the batches of this client's own test split.
            num_examples: the number of training examples.
        """
        self.model = model
        self.teacher = teacher
        self.shared = dict(shared)
        self.objective = objective
        self.settings = settings
        self.training_data = training_data
        self.test_data = test_data
        self.num_examples = num_examples

    def get_parameters(self, config: dict[str, Scalar]) -> list[np.ndarray]:
        """Return the shared tensors of the model as it is now."""
        return [tensor.detach().cpu().numpy().copy() for tensor in self.shared.values()]

    def set_parameters(self, parameters: list[np.ndarray]) -> None:
        """Load received tensors in place, into the model and its frozen copy."""
        if len(parameters) != len(self.shared):
            raise ValueError(f"received {len(parameters)} arrays instead of {len(self.shared)}")
        with torch.no_grad():
            for tensor, array in zip(self.shared.values(), parameters, strict=True):
                tensor.copy_(torch.from_numpy(array))
            if self.teacher is not None:
                for copy, tensor in zip(_state(self.teacher), _state(self.model), strict=True):
                    copy.copy_(tensor)
                self.teacher.eval()

    def fit(
        self, parameters: list[np.ndarray], config: dict[str, Scalar]
    ) -> tuple[list[np.ndarray], int, dict[str, Scalar]]:
        """Train from the received model; config: "server_round" and "lr". Raises `LossDiverged`."""
        self.set_parameters(parameters)
        result = train(
            self.model,
            self.teacher,
            self.objective,
            self.training_data(int(config["server_round"])),
            float(config["lr"]),
            self.settings,
        )
        trained = self.get_parameters({})
        if not all(np.isfinite(array).all() for array in trained):
            raise LossDiverged(f"the model has non-finite weights after {result.steps} steps")
        metrics: dict[str, Scalar] = {
            "loss": result.loss,
            "steps": result.steps,
            "seconds": result.seconds,
            "squared_distance": self._squared_distance(parameters, trained),
        }
        return trained, self.num_examples, metrics

    def _squared_distance(self, received: list[np.ndarray], trained: list[np.ndarray]) -> float:
        """Return ||w_i - w_g||^2 over the trained parameters that travel."""
        return sum(
            float(np.sum(np.square(own - before, dtype=np.float64)))
            for tensor, own, before in zip(self.shared.values(), trained, received, strict=True)
            if tensor.requires_grad
        )

    def evaluate(
        self, parameters: list[np.ndarray], config: dict[str, Scalar]
    ) -> tuple[float, int, dict[str, Scalar]]:
        """Evaluate the received model on the own test split: mean loss, examples, accuracy."""
        self.set_parameters(parameters)
        loss, correct, count = evaluate(self.model, self.test_data())
        return loss, count, {"accuracy": correct / max(count, 1)}


@torch.no_grad()
def evaluate(model: nn.Module, batches: Batches) -> tuple[float, int, int]:
    """Return the mean cross-entropy of the predictions, the number correct, and the number seen."""
    model.eval()
    loss, correct, count = 0.0, 0, 0
    for inputs, labels in batches:
        _, logits = model(inputs)
        loss += float(nn.functional.cross_entropy(logits, labels, reduction="sum"))
        correct += int((logits.argmax(1) == labels).sum())
        count += len(labels)
    return loss / max(count, 1), correct, count


def _state(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]
