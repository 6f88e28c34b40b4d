"""The layers of a network in this project's quicker ways of computing them on a CPU."""

from torch import nn

from fedapp.models.activations import ReLU
from fedapp.models.convolutions import DenseConv2d, DepthwiseConv2d, can_be_a_product

_PLAIN: dict[type[nn.Module], type[nn.Module]] = {
    DenseConv2d: nn.Conv2d,
    DepthwiseConv2d: nn.Conv2d,
    ReLU: nn.ReLU,
}


def use_quick_layers(network: nn.Module) -> None:
    """Give a network's convolutions and activations their quicker ways, in place.

    Only `forward` differs, so that parameters, hooks and the random generator stay as they are.
    """
    for module in network.modules():
        if type(module) is nn.ReLU:
            module.__class__ = ReLU
        elif type(module) is nn.Conv2d and module.groups == module.in_channels > 1:
            module.__class__ = DepthwiseConv2d
        elif type(module) is nn.Conv2d and can_be_a_product(module):
            module.__class__ = DenseConv2d


def use_plain_layers(network: nn.Module) -> None:
    """Undo `use_quick_layers`: for programs of PyTorch's own layers, and comparisons with them."""
    for module in network.modules():
        if type(module) in _PLAIN:
            module.__class__ = _PLAIN[type(module)]
