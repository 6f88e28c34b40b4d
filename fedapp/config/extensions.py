"""Adds rows of installed packages to the tables of data sets, backbones and methods.

This happens once, when a process first needs a configuration. All three tables are complete by
then, because a package may import one table to make a row of another.
"""

from fedapp.core.plugins import extend
from fedapp.data.datasets import DATASETS, DatasetInfo
from fedapp.methods.row import Method
from fedapp.methods.table import METHODS
from fedapp.models.backbones import BACKBONES, BackboneInfo

extend(DATASETS, "fedapp.datasets", DatasetInfo)
extend(BACKBONES, "fedapp.models", BackboneInfo)
extend(METHODS, "fedapp.methods", Method)

__all__ = ["BACKBONES", "DATASETS", "METHODS"]
