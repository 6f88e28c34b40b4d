"""fedapp: federated learning on heterogeneous data, as a Flower app.

For notebooks and scripts: `from fedapp import run, sweep, load_run, list_runs`. These names import
PyTorch and Flower only on first access, because the command line and Flower's processes, which must
start at once, import this package too. `__init__.pyi` declares the types of these names.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"
_INTERFACE = (
    "Round",
    "Rounds",
    "Run",
    "RunFailed",
    "Sweep",
    "list_runs",
    "load_run",
    "run",
    "sweep",
)
__all__ = ["__version__", *_INTERFACE]


def __getattr__(name: str) -> Any:
    if name in _INTERFACE:
        return getattr(import_module("fedapp.interface"), name)
    raise AttributeError(f"module 'fedapp' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
