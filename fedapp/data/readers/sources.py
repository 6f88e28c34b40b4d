"""Where the images of a data set come from: one array, or several seen as one.

Training needs a few rows at a time, so pooling the training and the test images of a data set must
not copy both into every process.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np


@dataclass(frozen=True)
class Origin:
    """Where a user's copy of a data set is, and what of it is wanted.

    Attributes:
        name: of the data set, as configured.
        data_dir: the folder that holds it; "": where downloads go.
        download: whether it may be fetched when it is not there.
        class_list: file with the wanted classes of ImageNet; "": the first 100.
        classes: names of a federation's classes, for images of each client's own; "": as found.
    """

    name: str
    data_dir: str = ""
    download: bool = False
    class_list: str = ""
    classes: str = ""


class Images(Protocol):
    """Images uint8 [n, H, W, channels], of which some are asked for at a time."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(n, H, W, channels)."""

    def __len__(self) -> int:
        """Return n."""

    def __getitem__(self, rows: Any, /) -> np.ndarray:
        """Return the listed rows, uint8 [rows, H, W, channels]."""


class Joined:
    """Two sources of images of one size, one after the other."""

    def __init__(self, first: Images, second: Images) -> None:
        self.first, self.second = first, second

    @property
    def shape(self) -> tuple[int, ...]:
        """(n, H, W, channels)."""
        return (len(self), *self.first.shape[1:])

    def __len__(self) -> int:
        """Return the number of images in both."""
        return len(self.first) + len(self.second)

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        """Return the listed rows, uint8 [rows, H, W, channels]."""
        images = np.empty((len(rows), *self.shape[1:]), dtype=np.uint8)
        in_second = rows >= len(self.first)
        images[~in_second] = self.first[rows[~in_second]]
        images[in_second] = self.second[rows[in_second] - len(self.first)]
        return images
