"""Feature skew: clients whose images look different, although their classes may be the same.

Cameras, scanners and places differ. On real data each client's folder is such a domain; here it is
simulated, so that methods are compared on any data set and with any partition of its labels.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fedapp.core.rng import Stream, torch_seed
from fedapp.data.readers.sources import Images

Split = Literal["train", "test"]


@dataclass(frozen=True)
class FeatureSkew:
    """How the images of the clients differ.

    Attributes:
        kind: key in `KINDS`.
        level: of the client with the largest change, in (0, 1]; rotations have none.
        num_clients: number of clients N, 2 or more.
        seed: of the noise.
    """

    kind: str
    level: float
    num_clients: int
    seed: int

    def position(self, client: int) -> float:
        """Return where a client stands between the first one (0) and the last (1)."""
        return client / (self.num_clients - 1)

    def view(self, images: Images, client: int, split: Split) -> Images:
        """Return the images of a split as this client has them."""
        return SkewedImages(images, self, client, split)


class SkewedImages:
    """A source of images that changes the rows that are read, for one client."""

    def __init__(self, images: Images, skew: FeatureSkew, client: int, split: Split) -> None:
        self.images, self.skew, self.client, self.split = images, skew, client, split

    @property
    def shape(self) -> tuple[int, ...]:
        """(n, H, W, channels)."""
        return self.images.shape

    def __len__(self) -> int:
        """Return n."""
        return len(self.images)

    def __getitem__(self, rows: Any, /) -> np.ndarray:
        """Return the listed rows, uint8 [rows, H, W, channels]."""
        change = KINDS[self.skew.kind]
        return np.ascontiguousarray(change(np.asarray(self.images[rows]), np.asarray(rows), self))


def rotated(pixels: np.ndarray, rows: np.ndarray, view: SkewedImages) -> np.ndarray:
    """Turn images by client mod 4 quarter turns, counterclockwise.

    These are the four clusters of Ghosh et al. 2020, NeurIPS (IFCA), rotated MNIST.
    """
    return np.rot90(pixels, view.client % 4, axes=(1, 2))


def noisy(pixels: np.ndarray, rows: np.ndarray, view: SkewedImages) -> np.ndarray:
    """Add Gaussian noise of standard deviation level * client / (N - 1), on the scale 0..1.

    This is noise-based feature skew as in the public code of NIID-Bench (Li et al. 2022, ICDE),
    whose experiments have the level 0.1. Here an image keeps its noise in all epochs and runs.
    """
    deviation = 255 * view.skew.level * view.skew.position(view.client)
    seed = torch_seed(view.skew.seed, Stream.FEATURE_SKEW, int(view.split == "test"), view.client)
    noise = np.empty(pixels.shape, np.float32)
    for row, image in zip(rows.tolist(), noise, strict=True):
        # A counter of its own for each image: the noise does not depend on what else is read.
        generator = np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, 0, row]))
        generator.standard_normal(out=image, dtype=np.float32)
    return _to_bytes(pixels + np.float32(deviation) * noise)


def brightened(pixels: np.ndarray, rows: np.ndarray, view: SkewedImages) -> np.ndarray:
    """Multiply pixels by 1 - level (first client) to 1 + level (last client), in equal steps."""
    factor = 1 + view.skew.level * (2 * view.skew.position(view.client) - 1)
    return _to_bytes(pixels * np.float32(factor))


def _to_bytes(pixels: np.ndarray) -> np.ndarray:
    return np.clip(np.rint(pixels), 0, 255).astype(np.uint8)


Change = Callable[[np.ndarray, np.ndarray, SkewedImages], np.ndarray]
KINDS: dict[str, Change] = {"rotation": rotated, "noise": noisy, "brightness": brightened}
