"""Batches of a data set, whose images are in memory or decoded when they are used."""

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import torch

from fedapp.data.batches.in_memory import (
    Batch,
    Bounds,
    ClientBatches,
    Normaliser,
    batch_bounds,
    evaluation_batches,
    mixed_order,
)
from fedapp.data.batches.streamed import MOST_TEST_IMAGES, StreamedBatches
from fedapp.data.dataset import Dataset
from fedapp.data.readers.encoded import EncodedImages
from fedapp.data.readers.sources import Images


def training_batches(
    data: Dataset,
    members: np.ndarray,
    batch_size: int,
    augmentation: str,
    device: torch.device,
    threads: int = 0,
    bounds: Bounds = batch_bounds,
    shuffle: bool = True,
) -> ClientBatches | StreamedBatches:
    """Return the batches of one client, whose training images are `members` [n].

    `bounds` and `shuffle` as in `ClientBatches`.

    Raises:
        UserError: an augmentation that is unknown, or unsuitable for these images.
    """
    images, labels = data.train_images, data.train_labels[members]
    if isinstance(images, EncodedImages):
        normalise = Normaliser(data.mean, data.std, images.side, device)
        return StreamedBatches(
            images, members, labels, normalise, batch_size, augmentation, device, threads,
            bounds, shuffle,
        )  # fmt: skip
    return ClientBatches(
        torch.from_numpy(np.ascontiguousarray(images[members])),
        torch.from_numpy(labels),
        data.mean, data.std, batch_size, augmentation, device, bounds=bounds, shuffle=shuffle,
    )  # fmt: skip


def plain_batches(
    data: Dataset,
    split: Literal["train", "test"],
    members: np.ndarray | None,
    batch_size: int,
    device: torch.device,
    shuffle_seed: int | None = None,
    threads: int = 0,
) -> Iterator[Batch]:
    """Return a split, or its `members`, in batches on the device, without augmentation.

    A `shuffle_seed` mixes the images in the same way every time.
    """
    training = split == "train"
    images: Images = data.train_images if training else data.test_images
    labels = data.train_labels if training else data.test_labels
    if not isinstance(images, EncodedImages):
        chosen: Any = slice(None) if members is None else members
        return evaluation_batches(
            torch.from_numpy(images[chosen]), torch.from_numpy(labels[chosen]),
            data.mean, data.std, batch_size, device, shuffle_seed,
        )  # fmt: skip
    rows = np.arange(len(images)) if members is None else members
    rows = rows[mixed_order(len(rows), shuffle_seed).numpy()]
    normalise = Normaliser(data.mean, data.std, images.side, device)
    size = min(batch_size, MOST_TEST_IMAGES)
    return StreamedBatches(
        images, rows, labels[rows], normalise, size, "none", device, threads
    ).in_order()
