"""Checks of one machine before it runs clients or a server.

What a federation adds, certificates, clock and ports, is in doctor_federation.py.
"""

import importlib.metadata
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedapp.errors import UserError

_NEEDED = {"flwr": ((1, 39), (1, 42)), "torch": ((2, 11), (3, 0)), "torchvision": ((0, 26), (1, 0))}
_DISK_GB = 1.0


@dataclass(frozen=True)
class Check:
    """The outcome of one check: fine or not, and what was found."""

    name: str
    ok: bool
    found: str

    def row(self) -> dict[str, Any]:
        """Return the check as a row of the table."""
        return {"check": self.name, "ok": "yes" if self.ok else "NO", "found": self.found}


def examine(dataset: str = "digits", data_dir: str = "") -> list[Check]:
    """Run the checks of the machine itself; a check that fails says what would be right."""
    checks = [_python(), *(_package(name, *limits) for name, limits in _NEEDED.items())]
    return [*checks, _devices(), *_disks(), _data(dataset, data_dir)]


def _python() -> Check:
    version = sys.version.split()[0]
    right = (3, 11) <= sys.version_info[:2] <= (3, 13)
    return Check("Python", right, version if right else f"{version}; 3.11 to 3.13 is needed")


def _package(name: str, low: tuple[int, int], high: tuple[int, int]) -> Check:
    wanted = f">= {low[0]}.{low[1]}, < {high[0]}.{high[1]}"
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Check(name, False, f"not installed; {wanted} is needed")
    major, minor = (int(part) for part in version.split(".")[:2])
    right = low <= (major, minor) < high
    return Check(name, right, version if right else f"{version}; {wanted} is needed")


def _devices() -> Check:
    import torch

    names = [_gpu(index) for index in range(torch.cuda.device_count())]
    return Check("devices", True, f"{os.cpu_count()} CPU cores; {', '.join(names) or 'no GPU'}")


def _gpu(index: int) -> str:
    import torch

    properties = torch.cuda.get_device_properties(index)
    return f"{properties.name} with {properties.total_memory / 1e9:.0f} GB"


def _disks() -> list[Check]:
    """Check the folders that grow: this one (runs), the data cache and Flower's home."""
    from fedapp.data.cache import cache_folder

    flower = Path(os.environ.get("FLWR_HOME", Path.home() / ".flwr"))
    places = {"disk": Path.cwd(), "disk of the cache": cache_folder(), "disk of Flower": flower}
    return [_disk(name, place) for name, place in places.items()]


def _disk(name: str, place: Path) -> Check:
    there = next(p for p in (place.absolute(), *place.absolute().parents) if p.exists())
    free = shutil.disk_usage(there).free / 1e9
    enough = free >= _DISK_GB and os.access(there, os.W_OK)
    text = f"{free:.1f} GB free in {place}"
    return Check(name, enough, text + ("" if enough else f"; {_DISK_GB:g} GB to write is needed"))


def _data(dataset: str, data_dir: str) -> Check:
    from fedapp.data.datasets import load_dataset

    def load() -> str:
        data = load_dataset(dataset, data_dir)
        return f"{dataset}: {len(data.train_labels)} training images of {data.num_classes} classes"

    return attempt("data", load)


def attempt(name: str, action: Callable[[], str]) -> Check:
    """Run one check: what it returns was found; what it raises says what is wrong."""
    try:
        return Check(name, True, action())
    except (UserError, ImportError, OSError, ValueError) as error:
        return Check(name, False, str(error))
