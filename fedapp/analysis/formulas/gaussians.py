"""One Gaussian per class over features: clients' statistics merged exactly, and random draws.

Source: Luo et al. 2021, NeurIPS (CCVR), global mean and covariance.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from clients.class_statistics import COUNTS, LABELS, MEANS, SCATTERS

_RIDGE = 1e-6  # share of the mean variance that makes a singular covariance positive definite


class ClassGaussians:
    """Number, mean and covariance of the features of each class, over all clients added so far.

    They equal those of all clients' features together, whatever the order of the clients. Memory: 8
    C d^2 bytes for C classes and d features.
    """

    def __init__(self, num_classes: int, width: int) -> None:
        """Start without a client; `width` is the number of features d."""
        self.counts = torch.zeros(num_classes, dtype=torch.int64)
        self.means = torch.zeros(num_classes, width, dtype=torch.float64)
        self.scatters = torch.zeros(num_classes, width, width, dtype=torch.float64)

    def add(self, statistics: Mapping[str, np.ndarray]) -> None:
        """Merge one client's statistics, those of `clients.class_statistics`."""
        counts = statistics[COUNTS].tolist()
        means, scatters = (torch.from_numpy(statistics[name]) for name in (MEANS, SCATTERS))
        for row, label in enumerate(statistics[LABELS].tolist()):
            before = int(self.counts[label])
            share = counts[row] / (before + counts[row])
            gap = means[row] - self.means[label]
            self.scatters[label] += scatters[row]
            self.scatters[label] += before * share * torch.outer(gap, gap)
            self.means[label] += share * gap
            self.counts[label] += counts[row]

    def covariance(self, label: int) -> Tensor:
        """Return the covariance of a class [d, d]; zero for fewer than two images."""
        return self.scatters[label] / max(int(self.counts[label]) - 1, 1)

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return `count` virtual features of each class that has images, float32, and labels.

        Raises torch.linalg.LinAlgError if the scatter of a class is that of no features.
        """
        labels = self.counts.nonzero().flatten()
        drawn = [self._draw(label, count, generator) for label in labels.tolist()]
        return torch.cat(drawn).float(), labels.repeat_interleave(count)

    def _draw(self, label: int, count: int, generator: torch.Generator) -> Tensor:
        covariance = self.covariance(label)
        width = len(covariance)
        ridge = _RIDGE * covariance.diagonal().mean() + 1e-12
        root = torch.linalg.cholesky(covariance + ridge * torch.eye(width, dtype=torch.float64))
        noise = torch.randn(count, width, generator=generator, dtype=torch.float64)
        return self.means[label] + noise @ root.T
