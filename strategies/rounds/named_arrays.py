"""What a server trains, as named arrays: sent to clients, and saved in checkpoints.

A checkpoint is one flat set of names, so each part of a strategy's state has a prefix of its own.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from strategies.aggregate import Arrays


def module_arrays(module: nn.Module, prefix: str = "") -> Arrays:
    """Copy a module's parameters and buffers, each by `prefix` and its own name."""
    return {prefix + name: t.numpy().copy() for name, t in module.state_dict().items()}


def load_module(module: nn.Module, arrays: Mapping[str, np.ndarray], prefix: str) -> None:
    """Take back what `module_arrays` returned; other names in `arrays` may have other prefixes."""
    named = under(arrays, prefix)
    module.load_state_dict({name: torch.from_numpy(array) for name, array in named.items()})


def under(arrays: Mapping[str, np.ndarray], prefix: str) -> Arrays:
    """Return the arrays whose names begin with `prefix`, by the rest of their names."""
    return {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}
