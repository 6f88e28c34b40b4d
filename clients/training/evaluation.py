"""Applying a model to data without training it: the loop that all evaluations share."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from clients.training.local_training import Batches


class Prediction(NamedTuple):
    """What a model makes of one batch of n images."""

    features: Tensor  # [n, d], the head's input
    logits: Tensor  # [n, C]
    labels: Tensor  # [n], int64


@torch.no_grad()
def predict(model: nn.Module, batches: Batches) -> Iterator[Prediction]:
    """Yield features, logits and labels of each batch, by the model in eval mode."""
    model.eval()
    for inputs, labels in batches:
        features, logits = model(inputs)
        yield Prediction(features, logits, labels)


class Score:
    """Loss and correct predictions over batches.

    Both stay on the device until they are asked for, so that no batch waits for the one before it.
    """

    def __init__(self) -> None:
        """Start with no image."""
        self._losses: list[Tensor] = []  # each batch's sum
        self._labels: list[Tensor] = []
        self._hits: list[Tensor] = []
        self.count = 0

    def add(self, logits: Tensor, labels: Tensor) -> None:
        """Add a batch, logits [n, C] and labels [n]."""
        self._losses.append(nn.functional.cross_entropy(logits.float(), labels, reduction="sum"))
        self._labels.append(labels)
        self._hits.append(logits.argmax(1) == labels)
        self.count += len(labels)

    @property
    def loss(self) -> float:
        """The mean cross-entropy; 0 of no image."""
        losses = torch.stack(self._losses).tolist() if self._losses else []
        return sum(losses) / max(self.count, 1)

    @property
    def accuracy(self) -> float:
        """The share of correct predictions; 0 of no image."""
        return int(joined(self._hits).sum()) / max(self.count, 1)

    def labels_and_hits(self) -> tuple[np.ndarray, np.ndarray]:
        """Return each image's label and whether its prediction is correct, [n] each."""
        return joined(self._labels).numpy(), joined(self._hits).numpy()


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Return vectors of the same type as one on the CPU; of no vector an empty int64 one."""
    return torch.cat(tuple(parts)).cpu() if parts else torch.zeros(0, dtype=torch.int64)
