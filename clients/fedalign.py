"""FedAlign's clients: align the last residual block's Lipschitz constants at full and part width.

The largest singular value of the product of the block's input and output approximates its Lipschitz
constant. A few power iterations compute it.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clients.base import LocalClient
from clients.training.local_training import Forward
from clients.training.objective import Objective

_ITERATIONS = 5
_CHANNELS = 64  # of the last block in the network for which the weight mu was published


class FedAlignClient(LocalClient):
    """Adds mu mean (s(x, h(x)) - s(x, h_w(x)))^2; h_w is block h with a part of its channels.

    Source: FedAlign (Mendieta et al. 2022, CVPR), for ResNets of basic blocks.
    """

    def __init__(self, *args: Any, mu: float, width: float, **kwargs: Any) -> None:
        """Prepare a client.

        Args:
            args, kwargs: as `LocalClient`.
            mu: weight of the alignment.
            width: share of the block's inner channels, above 0 and up to 1.
        """
        super().__init__(*args, **kwargs)
        self.mu, self.width = mu, width

    def gradients(self, forward: Forward, objective: Objective) -> Tensor:
        """Set the gradients of the loss with the alignment of the last block."""
        block: Any = self.model.get_submodule("extractor.layer4")[-1]  # type: ignore[index]
        features: list[tuple[Tensor, Tensor]] = []
        hook = block.register_forward_hook(lambda _, x, y: features.append((x[0], y)))
        try:
            loss = objective(forward())
        finally:
            hook.remove()
        inputs, outputs = features[0]
        narrow = at_width(block, inputs, self.width)
        with torch.autocast(inputs.device.type, enabled=False):  # a difference of near norms
            whole, part = (stretch(inputs.float(), each.float()) for each in (outputs, narrow))
            loss = loss + self.mu * F.mse_loss(part, whole)
        loss.backward()
        return loss.detach()


def stretch(inputs: Tensor, outputs: Tensor) -> Tensor:
    """Return the spectral norm of G H^T / (H W) of each sample, [B], rescaled to 64 channels.

    G [channels in, H W] and H [channels out, H W] are a sample's features before and after a block.
    The larger maps are pooled to the size of the smaller ones. The norm grows with the numbers of
    channels, so it is multiplied by 64 / sqrt(channels in * channels out): without this factor the
    published weight would be thousands of times too strong for 512 channels. The singular vectors
    are treated as constants.
    """
    height, width = outputs.shape[2:]
    before = F.adaptive_avg_pool2d(inputs, (height, width)).flatten(2)
    after = outputs.flatten(2)
    with torch.no_grad():
        right = after.new_ones(*after.shape[:2], 1)  # features are not negative
        for _ in range(_ITERATIONS):  # with the factors, whose product is much larger than they are
            left = F.normalize(before @ (after.transpose(1, 2) @ right), dim=1)
            right = F.normalize(after @ (before.transpose(1, 2) @ left), dim=1)
    product = (left.transpose(1, 2) @ before) @ (after.transpose(1, 2) @ right) / after.shape[2]
    scale = _CHANNELS / (before.shape[1] * after.shape[1]) ** 0.5
    return scale * product.flatten()


def at_width(block: Any, inputs: Tensor, width: float) -> Tensor:
    """Run a basic block with only the first share `width` of its inner channels.

    Normalisation uses the batch's statistics and leaves the running statistics unchanged. With
    GroupNorm the channels are those of whole groups, at least of one.
    """
    channels = max(1, round(width * block.conv1.out_channels))
    if isinstance(block.bn1, nn.GroupNorm):
        size = block.conv1.out_channels // block.bn1.num_groups
        channels = max(size, channels // size * size)
    hidden = F.conv2d(inputs, block.conv1.weight[:channels], None, block.conv1.stride, 1)
    hidden = F.relu(_normalised(block.bn1, hidden, channels))
    hidden = F.conv2d(hidden, block.conv2.weight[:, :channels], None, 1, 1)
    shortcut = inputs
    if block.downsample is not None:
        convolution, norm = block.downsample
        shortcut = F.conv2d(inputs, convolution.weight, None, convolution.stride)
        shortcut = _normalised(norm, shortcut, len(norm.weight))
    return F.relu(_normalised(block.bn2, hidden, len(block.bn2.weight)) + shortcut)


def _normalised(norm: nn.Module, values: Tensor, channels: int) -> Tensor:
    """Apply the first channels of a normalisation layer."""
    weight, bias = norm.get_parameter("weight"), norm.get_parameter("bias")
    if isinstance(norm, nn.GroupNorm):
        groups = max(1, norm.num_groups * channels // len(weight))
        return F.group_norm(values, groups, weight[:channels], bias[:channels], norm.eps)
    return F.batch_norm(values, None, None, weight[:channels], bias[:channels], training=True)
