"""The method table."""

from fedapp.methods.row import Method
from fedapp.methods.table import METHODS, find_method

__all__ = ["METHODS", "Method", "find_method"]
