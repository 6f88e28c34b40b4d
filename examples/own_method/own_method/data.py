"""A data set that is made when it is read, and a small network for it."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import nn

from fedapp.data.datasets import DatasetInfo
from fedapp.models.backbones import BackboneInfo, NormLayer

SIDE, CLASSES = 8, 4
ANGLES = np.array([0.0, 45.0, 90.0, 135.0])  # degrees, of the stripes of each class


def _images(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw stripes: uint8 images [count, SIDE, SIDE, 1] and int64 labels [count]."""
    labels = rng.integers(0, CLASSES, count)
    rows, columns = np.mgrid[:SIDE, :SIDE]
    angles = np.radians(ANGLES[labels])[:, None, None]
    waves = np.cos(angles) * rows + np.sin(angles) * columns + rng.uniform(0, 6.3, (count, 1, 1))
    pixels = 127 + 100 * np.sin(1.6 * waves) + rng.normal(0, 20, (count, SIDE, SIDE))
    return pixels.clip(0, 255).astype(np.uint8)[..., None], labels


def read_stripes(origin: Any) -> Mapping[str, Any]:
    """Return the parts of a `fedapp.data.dataset.Dataset`; the same on every machine."""
    rng = np.random.default_rng(0)
    train, train_labels = _images(800, rng)
    test, test_labels = _images(200, rng)
    return {
        "classes": [f"{angle:.0f} degrees" for angle in ANGLES],
        "mean": [train.mean() / 255],
        "std": [train.std() / 255],
        "train_images": train,
        "train_labels": train_labels,
        "test_images": test,
        "test_labels": test_labels,
    }


def build_mlp(channels: int, image_size: int, norm: NormLayer) -> nn.Module:
    """Build one hidden layer: images [B, channels, H, W] to features [B, 32]."""
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * image_size**2, 32), nn.ReLU())


STRIPES = DatasetInfo(CLASSES, SIDE, "stripes at four angles", "nothing: it is made", read_stripes)
MLP = BackboneInfo(build_mlp, feature_dim=32, has_batch_norm=False)
