"""Adds what installed packages bring to the tables of data sets, backbones and methods.

It happens once, when a configuration is first needed and all three tables are complete: a package
may well import one of them to make a row of another.
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
