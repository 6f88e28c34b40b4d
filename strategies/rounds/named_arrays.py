"""Modules as named arrays, for messages and checkpoints.

A checkpoint has one flat set of names, so each part of a strategy's state has its own prefix.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from strategies.aggregate import Arrays


def module_arrays(module: nn.Module, prefix: str = "") -> Arrays:
    """Copy a module's parameters and buffers, named with `prefix` and their own names."""
    return {prefix + name: t.numpy().copy() for name, t in module.state_dict().items()}


def load_module(module: nn.Module, arrays: Mapping[str, np.ndarray], prefix: str) -> None:
    """Load what `module_arrays` returned; arrays with other prefixes are ignored."""
    named = strip_prefix(arrays, prefix)
    module.load_state_dict({name: torch.from_numpy(array) for name, array in named.items()})


def strip_prefix(arrays: Mapping[str, np.ndarray], prefix: str) -> Arrays:
    """Return the arrays whose names begin with `prefix`, without the prefix."""
    return {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}
