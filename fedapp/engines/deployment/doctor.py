"""Checks of one machine before it runs clients or a server.

The checks of certificates, clock and ports are in doctor_federation.py.
"""

import importlib.metadata
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedapp.core.errors import UserError
from fedapp.core.hardware import gpu_count, gpu_names
from fedapp.core.paths import cache_folder, state_folder

if TYPE_CHECKING:
    from packaging.requirements import Requirement

_PACKAGES = ("flwr", "torch", "torchvision")
_DISK_GB = 1.0


@dataclass(frozen=True)
class Check:
    """The result of one check: passed or not, and a description."""

    name: str
    ok: bool
    found: str

    def row(self) -> dict[str, Any]:
        """Return the check as a row of the table."""
        return {"check": self.name, "ok": "yes" if self.ok else "NO", "found": self.found}


def examine(
    dataset: str = "digits",
    data_dir: str = "",
    classes: str = "",
    image_size: int = 0,
    test_share: float = 0.0,
) -> list[Check]:
    """Run the checks of the machine; a failed check states what would be right.

    With `classes` the images in `data_dir` are those of one host alone, as with partition 'own'.
    """
    checks = [*_versions(), attempt("devices", _devices), *_disks()]
    if classes:
        data = partial(_own_data, data_dir, classes, image_size)
    else:
        data = partial(_data, dataset, data_dir, image_size=image_size, test_share=test_share)
    return [*checks, attempt("data", data)]


def _versions() -> list[Check]:
    """Check Python and packages against the requirements of the installed fedapp."""
    from packaging.requirements import Requirement

    try:
        metadata = importlib.metadata.metadata("fedapp")
    except importlib.metadata.PackageNotFoundError:
        return [Check("fedapp", False, "not installed, so its requirements are unknown")]
    needed = {one.name: one for one in map(Requirement, metadata.get_all("Requires-Dist", []))}
    python = Requirement(f"Python{metadata['Requires-Python']}")
    return [
        _version(python, ".".join(map(str, sys.version_info[:3]))),
        *(_version(needed[name], _installed(name)) for name in _PACKAGES),
    ]


def _installed(name: str) -> str:
    """Return the version of a package; "" if it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _version(needed: "Requirement", version: str) -> Check:
    satisfied = bool(version) and needed.specifier.contains(version, prereleases=True)
    description = version or "not installed"
    return Check(
        needed.name,
        satisfied,
        description if satisfied else f"{description}; {needed.specifier} is needed",
    )


def _devices() -> str:
    import torch

    count = gpu_count()
    if gpu_names() and not count:
        raise UserError(
            f"there are GPUs, but PyTorch {torch.__version__} cannot use them: it is made for CUDA "
            f"{torch.version.cuda}, which may need a newer driver"
        )
    names = [_gpu(index) for index in range(count)]
    return f"{os.cpu_count()} CPU cores; {', '.join(names) or 'no GPU'}"


def _gpu(index: int) -> str:
    import torch

    properties = torch.cuda.get_device_properties(index)
    return f"{properties.name} with {properties.total_memory / 1e9:.0f} GB"


def _disks() -> list[Check]:
    """Check the disks of the working directory (runs), caches, client states and Flower's home."""
    flower = Path(os.environ.get("FLWR_HOME", Path.home() / ".flwr"))
    folders = {
        "disk": Path.cwd(),
        "disk of the cache": cache_folder(),
        "disk of client states": state_folder(),
        "disk of Flower": flower,
    }
    return [_disk(name, folder) for name, folder in folders.items()]


def _disk(name: str, folder: Path) -> Check:
    existing = next(p for p in (folder.absolute(), *folder.absolute().parents) if p.exists())
    free = shutil.disk_usage(existing).free / 1e9
    enough = free >= _DISK_GB and os.access(existing, os.W_OK)
    text = f"{free:.1f} GB free in {folder}"
    return Check(name, enough, text + ("" if enough else f"; {_DISK_GB:g} GB to write is needed"))


def _data(dataset: str, data_dir: str, **options: Any) -> str:
    from fedapp.data.datasets import load_dataset

    data = load_dataset(dataset, data_dir, **options)
    return f"{dataset}: {len(data.train_labels)} training images of {data.num_classes} classes"


def _own_data(data_dir: str, classes: str, image_size: int) -> str:
    from fedapp.data.readers.own_images import class_names, load_named_images

    images = load_named_images(data_dir, class_names(classes), image_size)
    counts = {split: len(images[f"{split}_labels"]) for split in ("train", "test")}
    return f"{counts['train']} training images and {counts['test']} test images of its own"


def attempt(name: str, action: Callable[[], str]) -> Check:
    """Run one check; its result or its error becomes the description."""
    try:
        return Check(name, True, action())
    except (UserError, ImportError, OSError, ValueError) as error:
        return Check(name, False, str(error))
