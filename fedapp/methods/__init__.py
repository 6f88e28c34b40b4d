"""The method table and the types of its rows."""

from fedapp.methods.row import (
    CLIENT_MEAN,
    CLIENT_TOTAL,
    GLOBAL,
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
    "CLIENT_MEAN",
    "CLIENT_TOTAL",
    "GLOBAL",
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
