"""Models: an extractor that gives features, and a head that gives logits from them.

Between the two may stand a bottleneck: a linear layer to two features, which can be drawn as they
are, or two layers, which are the projection head of MOON.
Methods differ in the head and in what they do with the features, so both are visible: calling a
model returns (features, logits), and a method that shares only the body shares `shared_tensors`.
"""

import torch
from torch import Tensor, nn

from fedapp.core.rng import Stream, seeded, torch_seed
from fedapp.models.backbones import BACKBONES, build_extractor
from fedapp.models.heads import Head, HeadKind, build_head


class Model(nn.Module):
    """An extractor, a bottleneck if there is one, and a head."""

    def __init__(
        self, extractor: nn.Module, head: Head, bottleneck: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.extractor = extractor
        self.bottleneck = nn.Identity() if bottleneck is None else bottleneck
        self.head = head

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Map images [B, channels, H, W] to features [B, d] and logits [B, C]."""
        features = self.bottleneck(self.extractor(inputs))
        return features, self.head(features)


def import_networks(model: str, model_group: str) -> None:
    """Import torchvision if a run's models are made of its networks: that takes as long as PyTorch.

    A simulation's processes do it as they start, beside each other, not when they need a model.
    """
    if model_group or model.startswith(("resnet", "mobilenetv2")):
        import torchvision.models  # noqa: F401


def build_model(
    backbone: str,
    head: str | HeadKind,
    channels: int,
    image_size: int,
    num_classes: int,
    seed: int,
    bn: str = "batch",
    device: str | torch.device = "cpu",
    logit_scale: float = 1.0,
    bottleneck: int = 0,
    bottleneck_layers: int = 1,
) -> Model:
    """Build a model whose initial weights are a function of the seed alone.

    The extractor and the head draw from streams of their own, so that methods with different heads
    start from the same body; torch's global generator is left as it was. `bottleneck` is the number
    of features that `bottleneck_layers` layers make of the extractor's (0: no such layers).
    """
    width = BACKBONES[backbone].feature_dim
    with seeded(torch_seed(seed, Stream.MODEL)):
        extractor = build_extractor(backbone, channels, image_size, bn)
        between = _bottleneck(width, bottleneck, bottleneck_layers) if bottleneck else None
    classifier = build_head(
        head, bottleneck or width, num_classes, torch_seed(seed, Stream.HEAD), scale=logit_scale
    )
    model = Model(extractor, classifier, between)
    # the faster format on the CPU for every backbone (1.04x for VGG11 to 1.4x for the CNN)
    return model.to(memory_format=torch.channels_last).to(device)


def _bottleneck(width: int, features: int, layers: int) -> nn.Module:
    """Make the layers between extractor and head: [B, width] -> [B, features], not rectified.

    With two, the hidden one is as wide as the extractor and followed by a ReLU: the projection head
    of MOON (Li Q. et al. 2021, CVPR, section 3.3), on which its classifier stands.
    """
    last = nn.Linear(width, features)
    return last if layers == 1 else nn.Sequential(nn.Linear(width, width), nn.ReLU(), last)


def shared_tensors(model: Model, sends: str = "model") -> dict[str, Tensor]:
    """Return what travels, by name: of the floating tensors those that `sends` names.

    "model": all of it; "body": without the head's weight and bias; "head": the head alone;
    "nothing". A frozen head never travels: it is rebuilt from the seed wherever it is needed.
    Counters (BatchNorm's `num_batches_tracked`) have no mean and stay where they are.
    """
    if sends == "nothing":
        return {}
    kept_back = ("head.weight", "head.bias") if model.head.frozen or sends == "body" else ()
    return {
        name: tensor
        for name, tensor in model.state_dict(keep_vars=True).items()
        if tensor.is_floating_point()
        and name not in kept_back
        and (sends != "head" or name.startswith("head."))
    }
