"""The outputs of a model on the test set, from which all measures of models are computed.

One pass over the test images gives features and logits; the measures are arithmetic on them. A view
of a thousand-class model on ten thousand images takes about 60 MB, so local models are measured one
after the other.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from clients.training.arrays import load_arrays, to_arrays
from clients.training.evaluation import predict
from fedapp.core.arrays import Arrays
from fedapp.runtime.process.context import ProcessContext
from fedapp.runtime.process.evaluation import accuracy_by_class
from strategies.threads import threads


@dataclass(frozen=True)
class View:
    """A model's outputs on the global test set."""

    features: np.ndarray  # [n, d]
    logits: np.ndarray  # [n, C]
    labels: np.ndarray  # [n]
    head: np.ndarray  # [C, d], the rows of the classifier
    arrays: Arrays  # the trained parameters, by name
    normalised: bool  # whether the head normalises features

    @cached_property
    def right(self) -> np.ndarray:
        """Whether each image is classified correctly: [n], 0 or 1."""
        return (self.logits.argmax(axis=1) == self.labels).astype(float)

    @cached_property
    def class_accuracy(self) -> np.ndarray:
        """The accuracy of each class: [C]."""
        return accuracy_by_class(self.labels, self.right, len(self.head))


@dataclass(frozen=True)
class Stop:
    """A local model during training: as received, or after one of its epochs."""

    accuracy: float  # on the whole test set
    class_accuracy: np.ndarray  # [C]
    arrays: Arrays  # the tensors that are sent, by name


@dataclass(frozen=True)
class Local:
    """A client's model after its local training, and the model that it received."""

    client: int
    view: View
    received: View
    counts: np.ndarray  # [C], the client's training images of each class in this round
    erased: int | None = None  # the class that the client lacks in this round
    path: Sequence[Stop] = ()  # as received and after each epoch; empty if no measure needs it

    @property
    def observed(self) -> np.ndarray:
        """The classes that the client has: a mask [C]."""
        return self.counts > 0


@torch.no_grad()
def view_of(process: ProcessContext) -> View:
    """Run the process's current model on the whole test set."""
    model = process.model
    parts = zip(*predict(model, process.data.test_batches()), strict=True)
    features, logits, labels = (torch.cat(batches) for batches in parts)
    trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
    return View(
        features.float().cpu().numpy(),
        logits.float().cpu().numpy(),
        labels.cpu().numpy(),
        model.head.weight.detach().cpu().numpy().copy(),
        to_arrays(trained),
        model.head.normalise,
    )


def load(process: ProcessContext, arrays: Arrays) -> None:
    """Load the tensors that are sent, by name, into the process's model."""
    load_arrays(process.slot.shared, arrays)


@contextmanager
def borrowed(process: ProcessContext) -> Iterator[None]:
    """Set a client's number of threads inside the block; restore it and the process's model."""
    saved = {name: tensor.clone() for name, tensor in process.model.state_dict().items()}
    try:
        with threads(process.config.threads):
            yield
    finally:
        process.model.load_state_dict(saved)
