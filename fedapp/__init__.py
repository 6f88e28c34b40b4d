"""fedapp: federated learning on heterogeneous data, as a Flower app.

For notebooks and scripts: `from fedapp import run, sweep, load_run`. What these need (PyTorch,
Flower) is imported when one of them is asked for, because the command line and Flower's processes
import this package too and must start at once. Their types are in `__init__.pyi`.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"
_INTERFACE = ("Round", "Rounds", "Run", "RunFailed", "Sweep", "load_run", "run", "sweep")
__all__ = ["__version__", *_INTERFACE]


def __getattr__(name: str) -> Any:
    if name in _INTERFACE:
        return getattr(import_module("fedapp.interface"), name)
    raise AttributeError(f"module 'fedapp' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
