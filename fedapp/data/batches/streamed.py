"""Batches of images that do not fit into memory: files are decoded when they are used.

ImageNet-100 takes 20 GB as arrays. Threads of the training process decode its photos a few batches
ahead (Pillow releases Python's lock), and nothing is kept. The augmentation depends on random
numbers that are drawn beforehand, so the number of threads changes no bit of a result.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from fedapp.core.errors import UserError
from fedapp.core.hardware import cores
from fedapp.data.batches.crops import draw_uniform
from fedapp.data.batches.in_memory import (
    Batch,
    Bounds,
    Normaliser,
    batch_bounds,
    epoch_order,
    parse_augmentation,
)
from fedapp.data.readers.encoded import EncodedImages, Task

AHEAD = 2  # batches that are decoded in advance
MOST_TEST_IMAGES = 128  # largest test batch
_MOST_THREADS = 8


def decoded(
    source: EncodedImages, batches: Iterable[Sequence[Task]], threads: int = 0
) -> Iterator[np.ndarray]:
    """Yield the images of each batch, uint8 [B, side, side, 3], decoded `AHEAD` batches ahead.

    `threads` 0 means one thread for each core that this process may use, up to 8.
    """
    pool = ThreadPoolExecutor(threads or min(_MOST_THREADS, cores()))
    waiting: deque[list[Future[np.ndarray]]] = deque()
    try:
        for tasks in batches:
            waiting.append([pool.submit(source.decode, task) for task in tasks])
            if len(waiting) > AHEAD:
                yield np.stack([future.result() for future in waiting.popleft()])
        while waiting:
            yield np.stack([future.result() for future in waiting.popleft()])
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def check_streamed(augmentation: str) -> frozenset[str]:
    """Return the words of an augmentation; raises UserError if one needs images in memory."""
    words = parse_augmentation(augmentation)
    if other := words - {"rrc", "flip"}:
        raise UserError(
            f"augmentation '{min(other)}' is not for photos of many sizes; use 'rrc flip'"
        )
    return words


class StreamedBatches:
    """The training set of one client, decoded when it is used; same interface as `ClientBatches`.

    Args:
        source: all images.
        rows: int64 [n], the client's.
        labels: int64 [n].
        normalise: applied on `device`.
        batch_size: samples per batch; a last batch of one is merged into the one before.
        augmentation: "none" or words of "rrc flip"; without rrc the central crop is used.
        device: for the batches.
        threads: number of decoding threads; 0: one per core.
        bounds: as in `ClientBatches`.
        shuffle: as in `ClientBatches`.

    Raises:
        UserError: an augmentation that needs images in memory.
    """

    nbytes = 0  # it keeps no images

    def __init__(
        self,
        source: EncodedImages,
        rows: np.ndarray,
        labels: np.ndarray,
        normalise: Normaliser,
        batch_size: int,
        augmentation: str,
        device: torch.device | str,
        threads: int = 0,
        bounds: Bounds = batch_bounds,
        shuffle: bool = True,
    ) -> None:
        self.bounds = bounds
        self.shuffle = shuffle
        self.augmentation = check_streamed(augmentation)
        self.source, self.rows, self.labels = source, rows, torch.from_numpy(labels)
        self.normalise, self.batch_size = normalise, batch_size
        self.device, self.threads = torch.device(device), threads

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.rows)

    def epoch(self, generator: torch.Generator, members: Tensor | None = None) -> Iterator[Batch]:
        """Yield (float32 [B, 3, side, side], int64 [B]) over all samples, or `members`, once."""
        count = len(self) if members is None else len(members)
        order = epoch_order(count, generator, self.shuffle)
        order = order if members is None else members[order]
        uniform = draw_uniform(count, generator) if "rrc" in self.augmentation else None
        mirrored = torch.zeros(count, dtype=torch.bool)
        if "flip" in self.augmentation:
            mirrored = torch.randint(0, 2, (count,), generator=generator).bool()
        tasks: list[Task] = [
            (int(self.rows[row]), None if uniform is None else uniform[i], bool(mirrored[i]))
            for i, row in enumerate(order.tolist())
        ]
        yield from self._serve(tasks, self.labels[order])

    def _serve(self, tasks: list[Task], labels: Tensor) -> Iterator[Batch]:
        bounds = self.bounds(len(tasks), self.batch_size)
        images = decoded(self.source, (tasks[a:b] for a, b in bounds), self.threads)
        for (start, stop), pixels in zip(bounds, images, strict=True):
            batch = self.normalise(self._moved(torch.from_numpy(pixels)))
            yield batch, self._moved(labels[start:stop])

    def _moved(self, tensor: Tensor) -> Tensor:
        """Return a tensor on the device; a GPU copies it while the next batch is decoded."""
        if self.device.type == "cpu":
            return tensor
        return tensor.pin_memory().to(self.device, non_blocking=True)

    def in_order(self) -> Iterator[Batch]:
        """Yield all samples once, in their order, without augmentation."""
        yield from self._serve([(int(row), None, False) for row in self.rows], self.labels)
