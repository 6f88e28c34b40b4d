"""Models: an extractor from images to features, and a head from features to logits.

An optional bottleneck is between the two: a linear layer to two features, which can be plotted
directly, or two layers, which are the projection head of MOON. Methods differ in the head and in
their use of the features, so a model returns (features, logits). `shared_tensors` selects the
tensors that a method sends.
"""

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from fedapp.core.errors import unknown
from fedapp.core.rng import Stream, seeded, torch_seed
from fedapp.models.backbones import BACKBONES, build_extractor
from fedapp.models.heads import Head, HeadKind, build_head

ALL_BUT_NORMS = "all but normalisation"  # what FedBN sends: see `shared_tensors`
SENDS = ("model", "body", "head", ALL_BUT_NORMS, "nothing")


class Model(nn.Module):
    """An extractor, an optional bottleneck, and a head.

    Attributes:
        frozen: the extractor's parameters that its builder has frozen, which nothing trains.
    """

    def __init__(
        self, extractor: nn.Module, head: Head, bottleneck: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.extractor = extractor
        self.bottleneck = nn.Identity() if bottleneck is None else bottleneck
        self.head = head
        layers = extractor.named_parameters(prefix="extractor")
        self.frozen = frozenset(name for name, tensor in layers if not tensor.requires_grad)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Map images [B, channels, H, W] to features [B, d] and logits [B, C]."""
        features = self.bottleneck(self.extractor(inputs))
        return features, self.head(features)


def import_networks(model: str, model_group: str) -> None:
    """Import torchvision if a run's models need it: that takes as long as importing PyTorch.

    A simulation's processes import it at their start, in parallel, not at the first model.
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
    """Build a model whose initial weights depend only on the seed.

    The extractor and the head use separate random streams, so that methods with different heads
    start from the same body. Torch's global generator does not change. `bottleneck` is the number
    of features after `bottleneck_layers` further layers (0: no such layers).
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
    """Build the layers between extractor and head: [B, width] -> [B, features], without final ReLU.

    With two layers, the hidden layer has the extractor's width and a ReLU. This is the projection
    head of MOON (Li Q. et al. 2021, CVPR, section 3.3), whose output is the classifier's input.
    """
    last = nn.Linear(width, features)
    return last if layers == 1 else nn.Sequential(nn.Linear(width, width), nn.ReLU(), last)


def _of_normalisation(model: nn.Module) -> set[str]:
    """Return the names of all tensors of BatchNorm, InstanceNorm, GroupNorm and LayerNorm."""
    return {
        f"{layer}.{name}"
        for layer, module in model.named_modules()
        if isinstance(module, _NormBase | nn.GroupNorm | nn.LayerNorm)
        for name in module.state_dict()
    }


def shared_tensors(model: Model, sends: str = "model") -> dict[str, Tensor]:
    """Return the floating tensors that are sent, by name; `sends` selects them.

    "model": all of them; "body": without the head's weight and bias; "head": only the head;
        "all but normalisation": without its normalisation layers; "nothing": none.
        A frozen head is never sent, because every process rebuilds it from the seed. Counters
        (BatchNorm's `num_batches_tracked`) have no mean and are not sent.

    Raises:
        UserError: another word.
    """
    if sends not in SENDS:
        raise unknown("part of the model that is sent", sends, SENDS)
    if sends == "nothing":
        return {}
    unshared = {"head.weight", "head.bias"} if model.head.frozen or sends == "body" else set()
    if sends == ALL_BUT_NORMS:
        unshared |= _of_normalisation(model)
    return {
        name: tensor
        for name, tensor in model.state_dict(keep_vars=True).items()
        if tensor.is_floating_point()
        and name not in unshared
        and (sends != "head" or name.startswith("head."))
    }
