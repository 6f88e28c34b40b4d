"""What a strategy sends beside the shared arrays: groups of named arrays, checked and packed.

A strategy of the user's own may return anything; the check says it before a message has it.
"""

import reprlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from flwr.app import ArrayRecord

from strategies.aggregate import Arrays
from strategies.rounds.records import ARRAYS, TASK, Packer
from strategies.rounds.report import RoundFailed

Extras = Callable[[Sequence[int]], Mapping[str, Arrays]]  # of the clients of one node


def pack_extras(groups: object, packer: Packer) -> dict[str, ArrayRecord]:
    """Return what a strategy's `extras` has returned, as records of a message.

    Raises `RoundFailed` if it is not groups of named arrays.
    """
    if not (isinstance(groups, Mapping) and all(map(_is_group, groups, groups.values()))):
        raise RoundFailed(
            f"the strategy's extras are {reprlib.repr(groups)}, but must be groups of named "
            f"arrays, {{'group': {{'name': array}}}}, and no group may be named '{ARRAYS}' or "
            f"'{TASK}'"
        )
    return {name: packer.pack(group) for name, group in groups.items()}


def _is_group(name: object, group: object) -> bool:
    """Return whether a message can have this group beside the shared arrays and the task."""
    return (
        isinstance(name, str)
        and name not in (ARRAYS, TASK)
        and isinstance(group, Mapping)
        and all(isinstance(each, str) for each in group)
        and all(map(_is_array, group.values()))
    )


def _is_array(value: object) -> bool:
    return isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf"
