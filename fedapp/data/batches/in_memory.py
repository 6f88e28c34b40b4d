"""Batches of one client's images, stored on the device as bytes and augmented batch by batch.

A data loader that augments sample by sample in Python costs several times a client's training step
on small models. Here a batch is one gather of pixels (crop and flip are arithmetic on the pixel
indices) and one multiply-add (normalisation). A CPU generator draws all random numbers of an epoch
at once, so that the batches do not depend on the device.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from fedapp.core.errors import UserError
from fedapp.data.batches.crops import crop_boxes, draw_uniform, resample

CROPS = ("crop", "crop-reflect", "rrc")  # mutually exclusive
AUGMENTATIONS = (*CROPS, "flip", "cutout")
PADDING = 4
CUTOUT_SIZE = 16
CUTOUT_FULL_SIZE_FROM = 28

Batch = tuple[Tensor, Tensor]
# (number of samples, batch size) -> the [start, stop) of each batch
Bounds = Callable[[int, int], list[tuple[int, int]]]


def parse_augmentation(text: str) -> frozenset[str]:
    """Read "none" or a space separated subset of "crop crop-reflect rrc flip cutout".

    Raises:
        UserError: an unknown augmentation, or two kinds of crop.
    """
    words = frozenset(text.split()) - {"none"}
    if unknown := words.difference(AUGMENTATIONS):
        raise UserError(
            f"unknown augmentation '{min(unknown)}'; use 'none' or words of "
            f"'{' '.join(AUGMENTATIONS)}', separated by spaces"
        )
    crops = [word for word in CROPS if word in words]
    if len(crops) > 1:
        raise UserError(
            f"augmentation '{crops[0]}' and '{crops[1]}' exclude each other; choose one of them"
        )
    return words


def batch_bounds(
    num_samples: int, batch_size: int, keep_single: bool = True
) -> list[tuple[int, int]]:
    """Cut 0..num_samples into batches [start, stop), merging a last batch of one sample.

    Batch normalisation needs a variance, which a batch of one does not have. Only a data set of a
    single sample, and `batch_size` 1, give such batches; without `keep_single` the former has none.
    """
    starts = list(range(0, num_samples, batch_size)) if keep_single or num_samples > 1 else []
    if batch_size > 1 and len(starts) > 1 and num_samples - starts[-1] == 1:
        starts.pop()
    return list(zip(starts, [*starts[1:], num_samples], strict=True)) if starts else []


def full_batch_bounds(
    num_samples: int, batch_size: int, keep_single: bool = True
) -> list[tuple[int, int]]:
    """Cut 0..num_samples into full batches and drop the rest; too few samples form one batch.

    Without `keep_single` a single sample gives no batch. FedDOR's code lineage trains heterogeneous
    models with these batches.
    """
    if num_samples < (2 if not keep_single else 1):
        return []
    if num_samples < batch_size:
        return [(0, num_samples)]
    starts = range(0, num_samples - batch_size + 1, batch_size)
    return [(start, start + batch_size) for start in starts]


def epoch_order(num_samples: int, generator: torch.Generator, shuffle: bool) -> Tensor:
    """Return the order [n] of an epoch's samples: random if `shuffle`, otherwise as stored."""
    if not shuffle:
        return torch.arange(num_samples)
    return torch.randperm(num_samples, generator=generator)


class Normaliser:
    """Turn uint8 images [B, H, W, channels] into normalised float32 [B, channels, H, W].

    The result is (x / 255 - mean) / std, folded into one multiply-add.
    """

    def __init__(
        self,
        mean: Sequence[float],
        std: Sequence[float],
        width: int,
        device: torch.device | str,
    ) -> None:
        std_tensor = torch.tensor(std, dtype=torch.float64)
        scale = 1 / (255 * std_tensor)
        shift = -torch.tensor(mean, dtype=torch.float64) / std_tensor
        # One factor per column and channel: an inner loop over 3 channels alone does not vectorise.
        self.scale = scale.repeat(width).to(device, torch.float32)
        self.shift = shift.repeat(width).to(device, torch.float32)

    def __call__(self, images: Tensor) -> Tensor:
        """Return the normalised images; in memory the channels come last."""
        values = images.to(torch.float32).flatten(2).mul_(self.scale).add_(self.shift)
        values = values.view(images.shape).permute(0, 3, 1, 2)
        return values.contiguous(memory_format=torch.channels_last)


class ClientBatches:
    """The training set of one client on the device, served as augmented batches.

    Args:
        images: uint8 [n, H, W, channels].
        labels: int64 [n].
        mean: per channel, on the scale 0..1.
        std: per channel, on the scale 0..1.
        batch_size: samples per batch; a last batch of one is merged into the one before.
        augmentation: "none" or words of "crop crop-reflect rrc flip cutout". crop: random window
            of the image padded by 4 black pixels. crop-reflect: padded by its mirror image. rrc:
            random window of 8 to 100 % of the area, scaled to the image's size (see `crops`).
            flip: left to right with probability 1/2. cutout: a square of 16 pixels (half the side
            of images below 28) set to zero after normalisation, its centre uniform in the image
            (DeVries & Taylor, 2017).
        device: for the data and the batches.
        bounds: divides samples into batches: `batch_bounds` or `full_batch_bounds`.
        shuffle: use a random order of samples instead of the stored one.

    Raises:
        UserError: unknown augmentation.
    """

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        mean: Sequence[float],
        std: Sequence[float],
        batch_size: int,
        augmentation: str = "none",
        device: torch.device | str = "cpu",
        bounds: Bounds = batch_bounds,
        shuffle: bool = True,
    ) -> None:
        self.bounds = bounds
        self.shuffle = shuffle
        self.augmentation = parse_augmentation(augmentation)
        self.batch_size = batch_size
        self.device = torch.device(device)
        self.labels = labels.to(self.device)
        self.height, self.width = images.shape[1:3]
        self.padded = _padded(images.to(self.device), self.augmentation)
        self.normalise = Normaliser(mean, std, self.width, self.device)

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.labels)

    @property
    def nbytes(self) -> int:
        """The bytes of its images on the device."""
        return self.padded.nbytes

    def epoch(self, generator: torch.Generator, members: Tensor | None = None) -> Iterator[Batch]:
        """Yield (float32 [B, channels, H, W], int64 [B]) over all samples once.

        `generator` is a CPU generator; the same state gives the same batches on every device.
        `members`, int64 [k] on the CPU, restricts the epoch to these samples.
        """
        order, draws = self._draw(generator, members)
        for start, stop in self.bounds(len(order), self.batch_size):
            chosen = order[start:stop]
            batch = {name: values[start:stop] for name, values in draws.items()}
            images = self.normalise(self._gather(chosen, batch))
            if "cutout" in batch:
                images = self._cut_out(images, batch["cutout"])
            yield images, self.labels.index_select(0, chosen)

    def _draw(
        self, generator: torch.Generator, members: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Draw an epoch's order [n] and the random numbers [n, ...] of each augmentation."""
        num_samples = len(self) if members is None else len(members)
        order = epoch_order(num_samples, generator, self.shuffle)
        if members is not None:
            order = members[order]
        draws = {}
        if self.augmentation & {"crop", "crop-reflect"}:
            draws["crop"] = torch.randint(0, 2 * PADDING + 1, (num_samples, 2), generator=generator)
        if "rrc" in self.augmentation:
            draws["rrc"] = crop_boxes(draw_uniform(num_samples, generator), self.height, self.width)
        if "flip" in self.augmentation:
            draws["flip"] = torch.randint(0, 2, (num_samples,), generator=generator).bool()
        if "cutout" in self.augmentation:
            uniform = torch.rand(num_samples, 2, generator=generator)
            draws["cutout"] = (uniform * torch.tensor([self.height, self.width])).long()
        return order.to(self.device), {k: v.to(self.device) for k, v in draws.items()}

    def _gather(self, chosen: Tensor, draws: dict[str, Tensor]) -> Tensor:
        """Return the chosen images [B, H, W, channels], cropped and mirrored as drawn."""
        if "rrc" in draws:
            return resample(self.padded.index_select(0, chosen), draws["rrc"], draws.get("flip"))
        if not draws.keys() & {"crop", "flip"}:
            return self.padded.index_select(0, chosen)
        rows = torch.arange(self.height, device=self.device).expand(len(chosen), -1)
        columns = torch.arange(self.width, device=self.device).expand(len(chosen), -1)
        if "flip" in draws:
            columns = torch.where(draws["flip"][:, None], columns.flip(1), columns)
        if "crop" in draws:
            rows, columns = rows + draws["crop"][:, :1], columns + draws["crop"][:, 1:]
        _, full_height, full_width, channels = self.padded.shape
        rows = (chosen[:, None] * full_height + rows) * full_width
        pixels = (rows[:, :, None] + columns[:, None, :]).flatten()
        # One index per pixel: several times faster than indexing with three broadcast tensors.
        return (
            self.padded.view(-1, channels)
            .index_select(0, pixels)
            .view(len(chosen), self.height, self.width, channels)
        )

    def _cut_out(self, images: Tensor, centres: Tensor) -> Tensor:
        """Zero a square around each centre [B, 2] of images [B, channels, H, W]."""
        rows = _within(centres[:, 0], self.height)
        columns = _within(centres[:, 1], self.width)
        return images.masked_fill_((rows[:, :, None] & columns[:, None, :])[:, None], 0.0)


def _padded(images: Tensor, augmentation: frozenset[str]) -> Tensor:
    """Return a copy of images [n, H, W, channels] with the margins for random windows.

    Mirrored margins do not repeat the edge pixel, as in torchvision's `padding_mode="reflect"`.
    """
    if "crop-reflect" in augmentation:
        return _mirrored(_mirrored(images, 2), 1)
    margin = PADDING if "crop" in augmentation else 0
    return F.pad(images, (0, 0, margin, margin, margin, margin)).contiguous()


def _mirrored(images: Tensor, side: int) -> Tensor:
    """Return images with mirrored margins along one dimension: 4 3 2 1 | 0 1 2 ..."""
    before = images.narrow(side, 1, PADDING)
    after = images.narrow(side, images.shape[side] - 1 - PADDING, PADDING)
    return torch.cat((before.flip(side), images, after.flip(side)), side)


def _within(centres: Tensor, side: int) -> Tensor:
    """Mark the positions 0..side-1 that the square around each centre covers: bool [B, side]."""
    size = CUTOUT_SIZE if side >= CUTOUT_FULL_SIZE_FROM else round(side / 2)
    offset = torch.arange(side, device=centres.device) - (centres - size // 2)[:, None]
    return (offset >= 0) & (offset < size)


def mixed_order(count: int, seed: int | None) -> Tensor:
    """Return an order [count] that is mixed in the same way every time; without a seed 0, 1, ..."""
    if seed is None:
        return torch.arange(count)
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


def evaluation_batches(
    images: Tensor,
    labels: Tensor,
    mean: Sequence[float],
    std: Sequence[float],
    batch_size: int = 128,
    device: torch.device | str = "cpu",
    shuffle_seed: int | None = None,
) -> Iterator[Batch]:
    """Yield (float32 [B, channels, H, W], int64 [B]) over all samples once, without augmentation.

    With batch statistics (`bn = "batch"`) the accuracy depends on which samples share a batch. A
    `shuffle_seed` then gives mixed batches that are the same every time.
    """
    order = mixed_order(len(labels), shuffle_seed).to(images.device)
    labels = labels.to(images.device)
    normalise = Normaliser(mean, std, images.shape[2], device)
    for start, stop in batch_bounds(len(labels), batch_size):
        chosen = order[start:stop]
        yield normalise(images.index_select(0, chosen).to(device)), labels[chosen].to(device)
