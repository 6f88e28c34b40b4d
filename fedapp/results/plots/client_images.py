"""A picture of some clients' images, as these clients train on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from fedapp.results.plots.rendering import new_figure, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@styled
def client_images(images: Mapping[int, np.ndarray]) -> Figure:
    """Draw images, one row per client: uint8 [n, H, W, channels] by client."""
    columns = max(map(len, images.values()))
    figure = new_figure(6.0, 0.4 + 0.56 * len(images))
    figure.suptitle("Training images of some clients", x=0.02, ha="left", fontweight="bold")
    grid = figure.subplots(len(images), columns, squeeze=False)
    for row, (client, pixels) in zip(grid, images.items(), strict=True):
        row[0].set_ylabel(f"{client}", rotation=0, ha="right", va="center")
        for axes in row:
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
        for axes, image in zip(row, pixels, strict=False):
            grey = image.shape[2] == 1
            axes.imshow(image[..., 0] if grey else image, cmap="gray", vmin=0, vmax=255)
    return figure
