"""Convolutions that a CPU computes in another way where oneDNN is slow.

- On images of a few pixels oneDNN's convolutions reach a fifth of the processor's speed, with AMX
  in bfloat16 a tenth. There the convolution is a matrix product of image patches and weights.
- With one output pixel, most of the kernel may lie over the zeros around the image: on an image of
  one pixel, eight ninths of a 3x3 kernel. There the image is multiplied by the rest of it alone.
- oneDNN has no quick bfloat16 kernel for the gradient of the input where a depthwise convolution
  has a stride, and none for that of its weights where the image is smaller than the kernel. There
  the convolution computes in float32.

Measured in docs/performance.md, "Convolutions".
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

_FEWEST_CHANNELS = 128  # below, the products are too small to be worth their calls
_PIXELS = 4  # an image of up to so many pixels is computed by a matrix product
_PIXELS_AMX = {  # the same on a processor with AMX, by whether in bfloat16, and by kernel size
    False: {1: 4, 3: 16},
    True: {1: 64, 3: 16},
}
_SAME_SIZE = (((1, 1), (0, 0), (1, 1)), ((3, 3), (1, 1), (1, 1)))  # kernel, padding, stride


class DepthwiseConv2d(nn.Conv2d):
    """A depthwise convolution; in float32 on a CPU under autocast where bfloat16 is slow.

    Without autocast, without gradients, or on a GPU, it is `nn.Conv2d`.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Convolve [B, C, H, W] to [B, C, H', W'], which is float32 where bfloat16 is slow."""
        if not (torch.is_grad_enabled() and self._slow_in_bfloat16(input)):
            return super().forward(input)
        with torch.autocast("cpu", enabled=False):
            return super().forward(input.float())

    def _slow_in_bfloat16(self, images: Tensor) -> bool:
        if not _is_bfloat16(images):
            return False
        return max(self.stride) > 1 or min(images.shape[2:]) < max(self.kernel_size)


class DenseConv2d(nn.Conv2d):
    """A convolution that is a matrix product on small images and with one output pixel.

    On a GPU, on larger images, and in float32 without gradients, it is `nn.Conv2d`: the last bits
    of a product depend on the number of threads, and evaluations run with any.
    """

    padding: tuple[int, int]  # never "same": see `can_be_a_product`

    def forward(self, input: Tensor) -> Tensor:
        """Convolve [B, C, H, W] to [B, C', H', W']."""
        one_output = self._has_one_output(input)
        if not (_can_train(input) and (one_output or self._is_small(input))):
            return super().forward(input)
        images = input.bfloat16() if _is_bfloat16(input) else input
        if one_output:
            rows, columns = (k - p for k, p in zip(self.kernel_size, self.padding, strict=True))
            covered = images[:, :, :rows, :columns]
            outputs = _OnePixel.apply(covered, self.weight, self.padding)
        elif self.kernel_size == (1, 1):
            weight = self.weight.to(images.dtype).flatten(1)
            outputs = _images(F.linear(_patches(images, 1), weight), images)
        else:
            outputs = _SmallConvolution.apply(images, self.weight.to(images.dtype))
        return outputs if self.bias is None else outputs + self.bias.to(images.dtype)[:, None, None]

    def _has_one_output(self, images: Tensor) -> bool:
        sides = zip(images.shape[2:], self.kernel_size, self.padding, self.stride, strict=True)
        return all(0 <= side + 2 * p - k < stride for side, k, p, stride in sides)

    def _is_small(self, images: Tensor) -> bool:
        if (self.kernel_size, self.padding, self.stride) not in _SAME_SIZE:
            return False
        limit = _PIXELS_AMX[_is_bfloat16(images)][self.kernel_size[0]] if _has_amx() else _PIXELS
        return images.shape[2] * images.shape[3] <= limit


class _OnePixel(Function):
    """A convolution with one output pixel: images [B, H*W*C] times the kernel's part over them.

    The weight is [C', C, k, k]; the gradient of its other part is zero. In bfloat16 only the part
    is converted.
    """

    @staticmethod
    def forward(ctx, images: Tensor, weight: Tensor, padding: tuple[int, int]) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(images, weight)
        ctx.padding = padding
        return (_flat(images) @ _flat(_part(weight, images, padding)).t())[:, :, None, None]

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[no-untyped-def]
        images, weight = ctx.saved_tensors
        gradient = gradient.flatten(1)
        of_images = gradient @ _flat(_part(weight, images, ctx.padding))
        of_part = (gradient.t() @ _flat(images)).to(weight.dtype)
        (top, left), (rows, columns) = ctx.padding, images.shape[2:]
        edges = (left, weight.shape[3] - left - columns, top, weight.shape[2] - top - rows)
        return _unflat(of_images, images), F.pad(_unflat(of_part, images), edges), None


def _part(weight: Tensor, images: Tensor, padding: tuple[int, int]) -> Tensor:
    """Return the part of a kernel over the images, without the part over the zeros around them."""
    (top, left), (rows, columns) = padding, images.shape[2:]
    return weight[:, :, top : top + rows, left : left + columns].to(images.dtype)


def _flat(images: Tensor) -> Tensor:
    """Return [N, C, H, W] as [N, H*W*C]: no copy in channels_last."""
    return images.permute(0, 2, 3, 1).flatten(1)


def _unflat(rows: Tensor, like: Tensor) -> Tensor:
    """Undo `_flat`, with the C, H and W of `like`."""
    return rows.view(len(rows), *like.shape[2:], like.shape[1]).permute(0, 3, 1, 2)


class _SmallConvolution(Function):
    """A 3x3 convolution with stride 1 and padding 1: patches [B*H*W, 9 C] times weights [9 C, C'].

    The gradient of the images is a convolution of the same kind, with turned weights.
    """

    @staticmethod
    def forward(ctx, images: Tensor, weight: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(images, weight)
        return _images(_patches(images, 3) @ weight.permute(2, 3, 1, 0).flatten(0, 2), images)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[no-untyped-def]
        images, weight = ctx.saved_tensors
        of_weight = _patches(gradient, 1).t() @ _patches(images, 3)
        turned = weight.flip(2, 3).permute(2, 3, 0, 1).flatten(0, 2)
        return (
            _images(_patches(gradient, 3) @ turned, images),
            of_weight.view(len(weight), 3, 3, -1).permute(0, 3, 1, 2),
        )


def _patches(images: Tensor, kernel: int) -> Tensor:
    """Return the patch of every pixel, with zeros around the image: [B*H*W, kernel^2 * C]."""
    pixels = images.permute(0, 2, 3, 1)  # no copy of images in channels_last
    if kernel == 1:
        return pixels.reshape(-1, pixels.shape[3])
    _, height, width, _ = pixels.shape
    edge = kernel // 2
    padded = F.pad(pixels, (0, 0, edge, edge, edge, edge))
    shifted = [
        padded[:, row : row + height, column : column + width]
        for row in range(kernel)
        for column in range(kernel)
    ]
    return torch.cat(shifted, dim=3).flatten(0, 2)


def _images(pixels: Tensor, like: Tensor) -> Tensor:
    """Return [B*H*W, C] as images [B, C, H, W] in channels_last, with the B, H and W of `like`."""
    return pixels.view(len(like), *like.shape[2:], -1).permute(0, 3, 1, 2)


def _can_train(images: Tensor) -> bool:
    """Return whether a CPU computes in bfloat16, or in float32 with gradients."""
    kind = images.device.type == "cpu" and images.dtype in (torch.float32, torch.bfloat16)
    return kind and (_is_bfloat16(images) or torch.is_grad_enabled())


def _is_bfloat16(images: Tensor) -> bool:
    """Return whether a layer computes in bfloat16 on a CPU."""
    return images.device.type == "cpu" and torch.is_autocast_enabled("cpu")


def _has_amx() -> bool:
    """Return whether the processor multiplies matrices of bfloat16 by AMX; False if unknown.

    PyTorch keeps the answer; its older versions have none.
    """
    capabilities: Mapping[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(capabilities.get("amx_bf16", False))


def can_be_a_product(layer: nn.Conv2d) -> bool:
    """Return whether `DenseConv2d` can take the place of this convolution."""
    return (
        layer.dilation == (1, 1)
        and layer.groups == 1
        and layer.padding_mode == "zeros"
        and isinstance(layer.padding, tuple)
        and all(k > p for k, p in zip(layer.kernel_size, layer.padding, strict=True))
        and min(layer.in_channels, layer.out_channels) >= _FEWEST_CHANNELS
    )
