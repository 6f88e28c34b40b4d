"""Images that stay compressed in memory and are decoded batch by batch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from fedapp.data.batches.crops import crop_boxes
from fedapp.data.readers.pixels import check_depth, open_image

if TYPE_CHECKING:
    from PIL.Image import Image

SCALE = 256 / 224  # shorter side before the central crop / side of the crop
Task = tuple[int, Tensor | None, bool]  # row, random numbers of a crop or None, mirrored


class EncodedImages:
    """Image files of any size, decoded to squares: the central crop, or random crops for training.

    Args:
        root: the folder that `names` are relative to.
        names: of the files.
        side: of the squares in pixels.
    """

    def __init__(self, root: Path, names: Sequence[str], side: int) -> None:
        self.root, self.names, self.side = root, names, side

    @property
    def shape(self) -> tuple[int, ...]:
        """(n, side, side, 3)."""
        return (len(self.names), self.side, self.side, 3)

    def __len__(self) -> int:
        """Return the number of files."""
        return len(self.names)

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        """Decode the central crops of the listed rows, uint8 [rows, side, side, 3]."""
        return np.stack([self.decode((int(row), None, False)) for row in rows])

    def joined(self, other: EncodedImages) -> EncodedImages:
        """Return these images followed by the other ones."""
        names = [str(images.root / name) for images in (self, other) for name in images.names]
        return EncodedImages(Path(), names, self.side)

    def decode(self, task: Task) -> np.ndarray:
        """Decode one file to uint8 [side, side, 3]; raises UserError that names a damaged file.

        Training: the random window of `crops`, scaled. Otherwise: scaled so that the shorter side
        is 256 for crops of 224, then the central crop. Both as torchvision does with Pillow.
        """
        row, uniform, mirrored = task
        with open_image(self.root / self.names[row]) as image:
            check_depth(f"image {self.root / self.names[row]}", image)
            photo = image.convert("RGB")
        pixels = np.asarray(self._crop(photo, uniform))
        return pixels[:, ::-1] if mirrored else pixels

    def _crop(self, photo: Image, uniform: Tensor | None) -> Image:
        from PIL.Image import Resampling  # takes half a second, and few data sets need it

        width, height = photo.size
        if uniform is not None:
            top, left, tall, wide = crop_boxes(uniform[None], height, width)[0].tolist()
            window = photo.crop((left, top, left + wide, top + tall))
            return window.resize((self.side, self.side), Resampling.BILINEAR)
        short = int(self.side * SCALE)
        wide, tall = max(short, short * width // height), max(short, short * height // width)
        left, top = round((wide - self.side) / 2), round((tall - self.side) / 2)
        scaled = photo.resize((wide, tall), Resampling.BILINEAR)
        return scaled.crop((left, top, left + self.side, top + self.side))
