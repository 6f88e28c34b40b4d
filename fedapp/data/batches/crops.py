"""RandomResizedCrop: windows of random size and shape, scaled to the model's input size.

The random numbers of a whole epoch are drawn at once from the run's generator (torchvision draws
them one by one from the global generator). Each window is then a pure function of these numbers and
the image's size.
"""

import math

import torch
from torch import Tensor

TRIES = 10
AREA = (0.08, 1.0)
RATIO = (3 / 4, 4 / 3)


def draw_uniform(num_images: int, generator: torch.Generator) -> Tensor:
    """Draw the random numbers for `crop_boxes`: float64 [n, TRIES, 4] in 0..1."""
    return torch.rand(num_images, TRIES, 4, generator=generator, dtype=torch.float64)


def crop_boxes(uniform: Tensor, height: int, width: int) -> Tensor:
    """Return a window for each row of `uniform` [n, TRIES, 4], for images of one size.

    The area and the logarithm of the aspect ratio are uniform. The result is the first of the tries
    that fits into the image; if none does, it is the largest central window with an allowed ratio,
    as in torchvision (Szegedy et al., 2015, Going deeper with convolutions).

    Returns:
        int64 [n, 4]: top, left, height, width.
    """
    area = height * width * (AREA[0] + uniform[..., 0] * (AREA[1] - AREA[0]))
    low, high = math.log(RATIO[0]), math.log(RATIO[1])
    ratio = torch.exp(low + uniform[..., 1] * (high - low))
    widths, heights = torch.sqrt(area * ratio).round(), torch.sqrt(area / ratio).round()
    fits = (widths > 0) & (widths <= width) & (heights > 0) & (heights <= height)
    tops = (uniform[..., 2] * (height - heights + 1)).floor()
    lefts = (uniform[..., 3] * (width - widths + 1)).floor()
    boxes = torch.stack([tops, lefts, heights, widths], dim=-1).long()
    first = boxes[torch.arange(len(boxes)), fits.int().argmax(dim=1)]
    return torch.where(fits.any(dim=1)[:, None], first, torch.tensor(_central(height, width)))


def _central(height: int, width: int) -> tuple[int, int, int, int]:
    """Return the largest central window whose ratio of width to height is allowed."""
    tall, wide = height, width
    if width / height < RATIO[0]:
        tall = round(width / RATIO[0])
    elif width / height > RATIO[1]:
        wide = round(height * RATIO[1])
    return (height - tall) // 2, (width - wide) // 2, tall, wide


def resample(images: Tensor, boxes: Tensor, flipped: Tensor | None = None) -> Tensor:
    """Scale a window of each image to the image's own size, bilinearly.

    Args:
        images: uint8 [B, H, W, channels].
        boxes: int64 [B, 4] on the same device: top, left, height, width.
        flipped: bool [B], which of the results to mirror.

    Returns:
        float32 [B, H, W, channels], not rounded.
    """
    height, width = images.shape[1:3]
    rows = _positions(boxes[:, 0], boxes[:, 2], height)
    columns = _positions(boxes[:, 1], boxes[:, 3], width)
    if flipped is not None:
        columns = torch.where(flipped[:, None], columns.flip(1), columns)
    # grid_sample counts from -1 at the first pixel's centre to 1 at the last one's.
    rows, columns = rows * (2 / (height - 1)) - 1, columns * (2 / (width - 1)) - 1
    grid = torch.stack(
        [columns[:, None, :].expand(-1, height, -1), rows[:, :, None].expand(-1, -1, width)], dim=-1
    )
    pixels = images.permute(0, 3, 1, 2).to(torch.float32)
    scaled = torch.nn.functional.grid_sample(
        pixels, grid, mode="bilinear", padding_mode="border", align_corners=True
    )
    return scaled.permute(0, 2, 3, 1)


def _positions(starts: Tensor, lengths: Tensor, side: int) -> Tensor:
    """Return the source positions, between pixels, of the `side` results: float32 [B, side]."""
    steps = (torch.arange(side, device=starts.device) + 0.5) / side
    inside = steps * lengths[:, None] - 0.5
    last = (lengths - 1)[:, None].to(inside.dtype)
    return starts[:, None] + inside.clamp(min=0).minimum(last)
