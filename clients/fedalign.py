"""FedAlign's clients: align the last stage's Lipschitz constants at full and part width.

The largest singular value of the product of the stage's input and output approximates its Lipschitz
constant. A few power iterations compute it.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clients.base import LocalClient
from clients.training.local_training import Forward
from clients.training.objective import Objective

_ITERATIONS = 10
_LEAST = 1e-12  # smallest squared difference, as a share of the mean square at full width


class FedAlignClient(LocalClient):
    """Adds mu L sg(l / L) with L = mean (s(x_w, h_w(x_w)) - sg(s(x, h(x))))^2, and l the loss.

    h_w is the last stage h with a part of its channels, x_w that part of its input x, s `stretch`,
    and sg stops gradients: so the term is always mu times the loss, and it trains the narrow stage
    alone. Source: FedAlign (Mendieta et al. 2022, CVPR) as in its authors' code, for ResNets of
    basic blocks.
    """

    def __init__(self, *args: Any, mu: float, width: float, **kwargs: Any) -> None:
        """Prepare a client.

        Args:
            args, kwargs: as `LocalClient`.
            mu: weight of the alignment.
            width: share of the stage's channels, above 0 and below 1.
        """
        super().__init__(*args, **kwargs)
        self.mu, self.width = mu, width

    def gradients(self, forward: Forward, objective: Objective) -> Tensor:
        """Set the gradients of the loss with the alignment; the returned loss is without it."""
        stage: Any = self.model.get_submodule("extractor.layer4")
        seen: list[tuple[Tensor, Tensor]] = []
        hook = stage.register_forward_hook(lambda _, x, y: seen.append((x[0].detach(), y.detach())))
        try:
            loss = objective(forward())
        finally:
            hook.remove()
        inputs, outputs = seen[0]
        part_inputs = inputs[:, : part_channels(inputs.shape[1], self.width, stage[0].bn1)]
        narrow = at_width(stage, part_inputs, self.width)
        with torch.autocast(inputs.device.type, enabled=False):  # a difference of near norms
            whole = stretch(inputs.float(), outputs.float())
            distance = F.mse_loss(stretch(part_inputs.float(), narrow.float()), whole)
        least = _LEAST * whole.square().mean()
        weight = self.mu * loss.detach() / torch.maximum(distance.detach(), least)
        (loss + weight * distance).backward()
        return loss.detach()


def stretch(inputs: Tensor, outputs: Tensor) -> Tensor:
    """Return the spectral norm of G H^T / (H W) of each sample, [B].

    G [channels in, H W] and H [channels out, H W] are a sample's features before and after a stage.
    The larger maps are pooled to the size of the smaller ones. The singular vectors are treated as
    constants, which gives the gradient of the norm once they have converged.
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
    return product.flatten()


def part_channels(channels: int, width: float, norm: nn.Module) -> int:
    """Return how many channels a share `width` is: of whole groups with GroupNorm, at least one."""
    part = max(1, round(width * channels))
    if not isinstance(norm, nn.GroupNorm):
        return part
    size = max(1, channels // norm.num_groups)
    return max(size, part // size * size)


def at_width(stage: Any, inputs: Tensor, width: float) -> Tensor:
    """Run a stage of basic blocks with the first share `width` of its channels, for as many inputs.

    Normalisation uses the batch's statistics and leaves the running statistics unchanged.
    """
    for block in stage:
        channels = part_channels(block.conv1.out_channels, width, block.bn1)
        hidden = F.relu(_normalised(block.bn1, _convolved(block.conv1, inputs, channels)))
        hidden = _normalised(block.bn2, _convolved(block.conv2, hidden, channels))
        if block.downsample is not None:
            convolution, norm = block.downsample
            inputs = _normalised(norm, _convolved(convolution, inputs, channels))
        inputs = F.relu(hidden + inputs)
    return inputs


def _convolved(convolution: Any, inputs: Tensor, channels: int) -> Tensor:
    """Apply the part of a convolution that maps the inputs' channels to the first `channels`."""
    weight = convolution.weight[:channels, : inputs.shape[1]]
    return F.conv2d(inputs, weight, None, convolution.stride, convolution.padding)


def _normalised(norm: nn.Module, values: Tensor) -> Tensor:
    """Apply the part of a normalisation layer for the channels that the values have."""
    channels = values.shape[1]
    weight, bias = norm.get_parameter("weight"), norm.get_parameter("bias")
    if isinstance(norm, nn.GroupNorm):
        groups = max(1, norm.num_groups * channels // len(weight))
        return F.group_norm(values, groups, weight[:channels], bias[:channels], norm.eps)
    return F.batch_norm(values, None, None, weight[:channels], bias[:channels], training=True)
