"""Cells of published tables, and empty data sets of the right shape, for tests of `reproduce`."""

import numpy as np

from fedapp.data.dataset import Dataset
from fedapp.experiments.papers.cells import cells_of, select
from fedapp.experiments.papers.tables import find_paper


def cell(paper="fedntd", table="table1-sharding", words="fedavg cifar10 s=2"):
    found = find_paper(paper)
    return select(cells_of(found, found.table(table)), words)


def copy_of(name: str, classes: int = 10, images: int = 50_000, size: int = 32):
    """An empty data set of the given shape."""
    pixels = np.zeros((1, size, size, 3), dtype=np.uint8)
    return Dataset(
        name, tuple(map(str, range(classes))), (0.5,) * 3, (0.5,) * 3,
        np.broadcast_to(pixels, (images, size, size, 3)), np.zeros(images, dtype=np.int64),
        pixels, np.zeros(1, dtype=np.int64),
    )  # fmt: skip
