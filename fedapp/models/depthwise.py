"""Depthwise convolutions that compute in float32 where bfloat16 has no quick gradient on a CPU.

oneDNN has no quick bfloat16 kernel for the gradient of the input where a depthwise convolution has
a stride, and none for the gradient of the weights where the image is smaller than the kernel: both
take 10 to 100 times as long as in float32 (docs/performance.md, "Precision").
"""

import torch
from torch import Tensor, nn


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
        if images.device.type != "cpu" or not torch.is_autocast_enabled("cpu"):
            return False
        return max(self.stride) > 1 or min(images.shape[2:]) < max(self.kernel_size)


def replace_depthwise(network: nn.Module) -> None:
    """Make every depthwise convolution of a network a DepthwiseConv2d, in place.

    Only `forward` differs, so that parameters, hooks and the random generator stay as they are.
    """
    for module in network.modules():
        if type(module) is nn.Conv2d and module.groups == module.in_channels > 1:
            module.__class__ = DepthwiseConv2d
