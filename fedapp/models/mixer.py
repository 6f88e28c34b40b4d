"""A small MLP-Mixer: a network without spatial convolutions, for heterogeneous model groups.

Convolutional networks of one family give similar features. The mixer mixes patches and channels
alternately with linear layers. A group with both kinds is heterogeneous in more than model size.
"""

from torch import Tensor, nn
from torch.nn import functional as F

PATCH = 4  # side of a patch in pixels
WIDTH = 128  # channels of a patch, and features
_PATCH_HIDDEN = 64
_BLOCKS = 4


class Mixer(nn.Module):
    """Patches of 4x4 pixels, four blocks, and the mean over patches of relu(norm(x)).

    Source: Tolstikhin et al., NeurIPS 2021, sections 2 and 3, in a size for 32x32 images. The ReLU
        before the mean is an addition: the features of all other architectures are non-negative
        too.
    """

    def __init__(self, channels: int, image_size: int) -> None:
        super().__init__()
        patches = (image_size // PATCH) ** 2
        self.embed = nn.Conv2d(channels, WIDTH, PATCH, stride=PATCH)
        self.blocks = nn.Sequential(*(_Block(patches) for _ in range(_BLOCKS)))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, images: Tensor) -> Tensor:
        """Map images [B, channels, H, W] to features [B, 128]; an incomplete patch is dropped."""
        patches = self.embed(images).flatten(2).transpose(1, 2)
        return F.relu(self.norm(self.blocks(patches))).mean(1)


class _Block(nn.Module):
    """Mixes patches, then channels; both with a shortcut."""

    def __init__(self, patches: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.across = _mlp(patches, _PATCH_HIDDEN)
        self.within = _mlp(WIDTH, WIDTH)

    def forward(self, patches: Tensor) -> Tensor:
        """Map [B, patches, 128] to the same shape."""
        patches = patches + self.across(self.first(patches).transpose(1, 2)).transpose(1, 2)
        mixed: Tensor = patches + self.within(self.second(patches))
        return mixed


def _mlp(width: int, hidden: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))
