"""The method table and the types of its rows."""

from fedapp.methods.row import (
    ClientSpec,
    Exchange,
    FineTuning,
    HeadSpec,
    LossSpec,
    Method,
    ServerSpec,
)
from fedapp.methods.table import METHODS, find_method

__all__ = [
    "METHODS",
    "ClientSpec",
    "Exchange",
    "FineTuning",
    "HeadSpec",
    "LossSpec",
    "Method",
    "ServerSpec",
    "find_method",
]
