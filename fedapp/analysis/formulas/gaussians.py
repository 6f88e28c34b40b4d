"""One Gaussian per class over features: clients' statistics merged exactly, and random draws.

What a client gives for a class are a number, a mean and a covariance, so no feature of an image
unless the class has one image only.
Source: Luo et al. 2021, NeurIPS (CCVR), global mean and covariance.
"""

import torch
from torch import Tensor

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
        self._scatters = torch.zeros(num_classes, width, width, dtype=torch.float64)

    def add(self, features: Tensor, labels: Tensor) -> None:
        """Merge the statistics of one client's features [n, d] with labels [n]."""
        for label in labels.unique().tolist():
            own = features[labels == label].double()
            count, before = len(own), int(self.counts[label])
            mean, share = own.mean(dim=0), count / (before + count)
            gap = mean - self.means[label]
            self._scatters[label] += (own - mean).T @ (own - mean)
            self._scatters[label] += before * share * torch.outer(gap, gap)
            self.means[label] += share * gap
            self.counts[label] += count

    def covariance(self, label: int) -> Tensor:
        """Return the covariance of a class [d, d]; zero for fewer than two images."""
        return self._scatters[label] / max(int(self.counts[label]) - 1, 1)

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return `count` virtual features of each class that has images, float32, and labels."""
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
