"""What a client tells of its features: number, mean and scatter of those of each of its classes.

They are sufficient for one Gaussian per class over all clients' features, and contain no feature of
a single image unless a class has one image only.
Source: Luo et al. 2021, NeurIPS (CCVR), algorithm 1.
"""

import numpy as np
import torch
from torch import Tensor, nn

from clients.arrays import Arrays
from clients.training.evaluation import predict
from clients.training.local_training import Batches

LABELS, COUNTS, MEANS, SCATTERS = "labels", "counts", "means", "scatters"


def class_statistics(features: Tensor, labels: Tensor) -> Arrays:
    """Return the statistics of features [n, d] with labels [n], for the k classes among them.

    Returns:
        "labels" [k] in ascending order and "counts" [k], int64; "means" [k, d] and "scatters"
        [k, d, d], the sums of (x - mean)(x - mean)^T, float64.
    """
    present, counts = labels.unique(return_counts=True)
    own = [features[labels == label].double() for label in present]
    means = [each.mean(dim=0) for each in own]
    centred = [each - mean for each, mean in zip(own, means, strict=True)]
    return {
        LABELS: present.numpy(),
        COUNTS: counts.numpy(),
        MEANS: np.stack([mean.numpy() for mean in means]),
        SCATTERS: np.stack([(each.T @ each).numpy() for each in centred]),
    }


def feature_statistics(model: nn.Module, batches: Batches) -> Arrays:
    """Return `class_statistics` of a model's features, the head's input, of all batches' images."""
    predictions = list(predict(model, batches))
    features = torch.cat([each.features.float().cpu() for each in predictions])
    return class_statistics(features, torch.cat([each.labels.cpu() for each in predictions]))
