"""Adds rows of installed packages to the tables of data sets, backbones and methods.

This happens once, when a process first needs a configuration. All three tables are complete by
then, because a package may import one table to make a row of another.
"""

from fedapp.core.plugins import extend
from fedapp.data.datasets import DATASETS, DatasetInfo
from fedapp.methods.row import Method
from fedapp.methods.table import METHODS, method_keys
from fedapp.models.backbones import BACKBONES, BackboneInfo

_INCLUDED = frozenset(METHODS)  # the methods that need no package

extend(DATASETS, "fedapp.datasets", DatasetInfo)
extend(BACKBONES, "fedapp.models", BackboneInfo)
extend(METHODS, "fedapp.methods", Method)

__all__ = ["BACKBONES", "DATASETS", "METHODS", "foreign_keys"]


def foreign_keys(method: str) -> set[str]:
    """Return the keys that only other methods of installed packages have.

    They mean nothing to a run of `method`, so servers, nodes and checkpoints may differ in them.
    """
    others = METHODS.keys() - _INCLUDED - {method}
    return method_keys().keys() - method_keys(without=others).keys()
