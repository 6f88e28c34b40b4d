"""The measures of models that give plots: the loss landscape, and maps of features.

Landscape and t-SNE are much slower (seconds to minutes) than the measures that give numbers, so
they use a sample of the test set.
"""

import math
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from fedapp.analysis.formulas import landscape
from fedapp.analysis.formulas.unit_circle import angles, density
from fedapp.analysis.measures.base import Figures, Measure
from fedapp.analysis.measures.views import Local, View
from fedapp.core.rng import Stream, numpy_rng, torch_rng

LANDSCAPE_IMAGES = 500
MAP_CLIENTS = 4  # local models in a plot beside the global one


class Landscape(Measure):
    """The loss around the global model's weights."""

    title = "Loss landscape of the global model"
    source = "FedNTD (Lee et al. 2022), appendix"
    local = False

    def of_model(self) -> dict[str, Any]:
        """Return losses under random perturbations, and on a slice along the largest curvature."""
        model = self.process.model.eval()
        batches = self._sample()
        count = sum(len(labels) for _, labels in batches)

        def loss() -> torch.Tensor:
            sums = [
                nn.functional.cross_entropy(model(inputs)[1], labels, reduction="sum")
                for inputs, labels in batches
            ]
            return torch.stack(sums).sum() / count

        generator = torch_rng(self.process.config.seed, Stream.ANALYSIS)
        rows = landscape.gaussian_losses(model, loss, generator)
        directions, curvatures = landscape.hessian_directions(model, loss, generator)
        return {
            "flatness": rows,
            "curvature_first": curvatures[0],
            "curvature_second": curvatures[1],
            "slice": np.round(landscape.slice_losses(model, loss, directions), 5),
            "span": landscape.SPAN,
        }

    def _sample(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return the tests' batches of images drawn from the whole test set, on the device."""
        data = self.process.data
        members = data.test_members()
        chosen = members[_sample_of(len(members), LANDSCAPE_IMAGES, self.process.config.seed)]
        return list(data.test_batches(chosen))


class FeatureMap(Measure):
    """A two-dimensional map of the same test images' features in the global and local models."""

    title = "t-SNE of test features"
    source = "FedNTD (Lee et al. 2022), figure on feature drift; van der Maaten and Hinton 2008"
    images: ClassVar[int] = 300  # of the test set
    clients: ClassVar[float] = MAP_CLIENTS

    def begin(self) -> None:
        """Keep what is drawn of the received model."""
        self.chosen = _sample_of(len(self.received.labels), self.images, self.process.config.seed)
        self.seen = {"global": self.received.features[self.chosen]}

    def of_client(self, local: Local) -> Figures:
        """Keep the features of the first clients."""
        if len(self.seen) <= self.clients:
            self.seen[f"client {local.client}"] = local.view.features[self.chosen]
        return {}

    def of_model(self) -> dict[str, Any]:
        """Return the joint map: for each model its points [images, 2], and the images' labels."""
        mapped = flat_map(np.concatenate(list(self.seen.values())), self.process.config.seed)
        parts = np.split(np.round(mapped.astype(float), 3), len(self.seen))
        return {
            "points": dict(zip(self.seen, parts, strict=True)),
            "labels": self.received.labels[self.chosen],
        }


class LocalFeatureMap(FeatureMap):
    """A map of the same test images' features in all local models."""

    title = "t-SNE of test features, by local model"
    images = 150  # keeps twenty local models below minutes
    clients = math.inf


class UnitCircle(Measure):
    """The density of each class's feature angles, in the global and some local models."""

    title = "Features on the unit circle"
    source = "FedNTD (Lee et al. 2022), figure of features on a hypersphere"

    def begin(self) -> None:
        """Keep what is drawn of the received model."""
        self.densities = {"global": _by_class(self.received)}
        self.observed = {"global": np.arange(len(self.received.head))}

    def of_client(self, local: Local) -> Figures:
        """Keep the densities of the first clients."""
        if len(self.densities) <= MAP_CLIENTS:
            name = f"client {local.client}"
            self.densities[name] = _by_class(local.view)
            self.observed[name] = np.flatnonzero(local.observed)
        return {}

    def of_model(self) -> dict[str, Any]:
        """Return each model's densities [classes, points], and the classes of its data."""
        return {"densities": self.densities, "observed": self.observed}


def flat_map(features: np.ndarray, seed: int) -> np.ndarray:
    """Return the t-SNE of features [n, d] in two dimensions, [n, 2]; n must be at least 4.

    Equal features, as of a network whose units are dead, are one point; with features that are not
    finite no image has a place (NaN).
    """
    if not np.isfinite(features).all():
        return np.full((len(features), 2), np.nan)
    if not np.ptp(features, axis=0).any():
        return np.zeros((len(features), 2))
    from sklearn.manifold import TSNE

    init = "pca" if features.shape[1] > 1 else "random"  # it needs two components
    tsne = TSNE(perplexity=min(30, len(features) / 4), init=init, random_state=seed % 2**32)
    mapped: np.ndarray = tsne.fit_transform(features)
    return mapped


def _sample_of(count: int, size: int, seed: int) -> np.ndarray:
    """Draw positions of test images, in ascending order."""
    drawn = numpy_rng(seed, Stream.ANALYSIS).permutation(count)[:size]
    return np.sort(drawn)


def _by_class(view: View) -> np.ndarray:
    """Return the density of each class of the whole test set: [classes, points]."""
    degrees = angles(view.features)
    return np.round([density(degrees[view.labels == c]) for c in range(len(view.head))], 6)
