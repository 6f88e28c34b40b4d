"""Applying a model to data without training it: the loop that all evaluations share."""

from collections.abc import Iterator
from typing import NamedTuple

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
    """Sums loss and correct predictions over batches."""

    def __init__(self) -> None:
        """Start with no image."""
        self.summed_loss, self.correct, self.count = 0.0, 0, 0

    def add(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Add a batch, logits [n, C] and labels [n]; returns which predictions are correct, [n]."""
        loss = nn.functional.cross_entropy(logits.float(), labels, reduction="sum")
        hits = logits.argmax(1) == labels
        self.summed_loss += float(loss)
        self.correct += int(hits.sum())
        self.count += len(labels)
        return hits

    @property
    def loss(self) -> float:
        """The mean cross-entropy; 0 of no image."""
        return self.summed_loss / max(self.count, 1)

    @property
    def accuracy(self) -> float:
        """The share of correct predictions; 0 of no image."""
        return self.correct / max(self.count, 1)
