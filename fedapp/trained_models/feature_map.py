"""A map of personal models' features of each client's own test images, coloured by class.

FedDOR's first figure shows whether clients with different architectures map a class to the same
region. The map needs the clients' stored models, so the run must have kept them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from clients.training.arrays import load_arrays
from clients.training.evaluation import predict
from fedapp.analysis.measures.pictures import flat_map
from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError
from fedapp.core.progress import tracked
from fedapp.core.rng import Stream, numpy_rng
from fedapp.results.final_model import read_model
from fedapp.results.plots.rendering import INK, class_scale, new_figure, styled
from fedapp.results.run_directory import RunDirectory
from fedapp.runtime.process.context import ProcessContext
from fedapp.runtime.process.earlier_run import check_extension, reopened
from fedapp.trained_models.finished_run import client_after
from strategies.prototypes.uploads import CLASSES, PROTOTYPES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_IMAGES = 1000  # t-SNE takes minutes for many more


@dataclass(frozen=True)
class Features:
    """Features [n, K] of test images with their labels [n], and global prototypes [m, K]."""

    rows: np.ndarray
    labels: np.ndarray
    prototypes: np.ndarray
    classes: np.ndarray
    clients: tuple[int, ...]  # the clients with these images and models


def features_of(run: RunDirectory) -> Features:
    """Compute the features of clients' test images with their stored models.

    Clients that were never sampled, or whose models are on other machines, are left out.

    Raises:
        UserError: the run's clients have no personal models, did not keep them, or have their own
            images.
    """
    check_extension(run)
    config = parse_config(run.config())
    if config.partition == "own":
        raise UserError(
            f"the clients of run '{run.name}' have partition 'own': their images and models stay "
            "on their hosts, so their features cannot be mapped here"
        )
    process = reopened(run, config)
    if process.heterogeneous is None:
        advice = f"; `fedapp analyse {run.path} -m t-sne` maps those of its global model"
        raise UserError(
            f"the features of clients with different architectures are mapped here, and those of "
            f"run '{run.name}' ({config.method}) have one"
            + (advice if process.method.has_global_model else "")
        )
    rounds = run.rounds()
    last = rounds[-1]["round"] if rounds else 0
    by_client = {
        client: features
        for client in tracked(range(config.training_clients), "reading clients' models")
        if (features := _of_client(process, client, last, run.state_key())) is not None
    }
    if not by_client:
        raise UserError(
            f"no client of run '{run.name}' has a model on this machine; run with keep-state=true "
            "to keep the models"
        )
    rows, labels = (np.concatenate(parts) for parts in zip(*by_client.values(), strict=True))
    order = numpy_rng(config.seed, Stream.ANALYSIS).permutation(len(labels))[:MOST_IMAGES]
    prototypes, classes = _prototypes(run, rows.shape[1])
    return Features(rows[order], labels[order], prototypes, classes, tuple(by_client))


def draw(features: Features, title: str, seed: int) -> Figure:
    """Map features and prototypes together, and draw them."""
    vectors = np.concatenate((features.rows, features.prototypes))
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    points = flat_map(vectors / np.maximum(lengths, 1e-12), seed)
    return _scatter(points, features, title)


@styled
def _scatter(points: np.ndarray, features: Features, title: str) -> Figure:
    figure = new_figure(4.8, 4.8)
    axes: Any = figure.subplots()
    count = len(features.labels)
    color = class_scale(int(features.labels.max()) + 1)
    drawn = axes.scatter(*points[:count].T, c=features.labels, s=8, **color)
    if len(features.classes):
        stars = {"marker": "*", "s": 140, "edgecolors": INK}
        axes.scatter(*points[count:].T, c=features.classes, **stars, **color)
    axes.set(xticks=[], yticks=[], title=title)
    axes.grid(visible=False)
    figure.colorbar(drawn, ax=axes, label="Class; stars: global prototypes", location="bottom")
    return figure


def _of_client(
    process: ProcessContext, client: int, last: int, key: str
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return features and labels of a client's test images; None without images or model."""
    numpy_client = client_after(process, client, last, key)
    if numpy_client is None:
        return None
    load_arrays(numpy_client.model.state_dict(), numpy_client.stored_state)
    batches = list(predict(numpy_client.model, numpy_client.data.test()))
    if not batches:
        return None
    return (
        torch.cat([batch.features for batch in batches]).cpu().numpy(),
        torch.cat([batch.labels for batch in batches]).cpu().numpy(),
    )


def _prototypes(run: RunDirectory, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the last global prototypes and their classes; empty if the method has none."""
    tensors = read_model(run)
    rows = tensors.get(f"table.{PROTOTYPES}", np.zeros((0, width), np.float32))
    if rows.shape[1] != width:  # a table of logits
        return np.zeros((0, width), np.float32), np.zeros(0, np.int64)
    return rows, tensors.get(f"table.{CLASSES}", np.zeros(0, np.int64))
