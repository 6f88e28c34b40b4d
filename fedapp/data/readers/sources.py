"""The sources of a data set's images: one array, or several as one.

Training needs a few rows at a time, so pooling the training and the test images of a data set must
not copy both into every process.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np


@dataclass(frozen=True)
class Origin:
    """The location of a user's copy of a data set, and the requested part.

    Attributes:
        name: of the data set, as configured.
        data_dir: the folder of the files; "": the folder for downloads.
        download: whether a missing data set may be fetched.
        class_list: file with the requested classes of ImageNet; "": the first 100.
        classes: names of a federation's classes, for clients' own images; "": the existing folders.
        image_size: side in pixels that the images' central squares are scaled to; 0: they are not.
        test_share: share of each class that is held out for tests, for data without test images;
            0: the data have them.
        clients: number of clients that have a folder each in `data_dir`; 0: it is not divided.
    """

    name: str
    data_dir: str = ""
    download: bool = False
    class_list: str = ""
    classes: str = ""
    image_size: int = 0
    test_share: float = 0.0
    clients: int = 0

    def source(self, root: object) -> str:
        """Return a name for what is read from a folder in this way, for the cache."""
        scaled = f" at {self.image_size}" if self.image_size else ""
        divided = f" with {self.test_share:g} held out" if self.test_share else ""
        return f"{root}{scaled}{divided}"


class Images(Protocol):
    """Images uint8 [n, H, W, channels], read some rows at a time."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(n, H, W, channels)."""

    def __len__(self) -> int:
        """Return n."""

    def __getitem__(self, rows: Any, /) -> np.ndarray:
        """Return the listed rows, uint8 [rows, H, W, channels]."""


class Joined:
    """Two concatenated sources of images of one size."""

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
