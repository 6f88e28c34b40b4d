"""The hardware a process has: cores, memory, GPUs, and how exactly they multiply.

Processes that only start others ask for cores and GPUs, so PyTorch, which takes seconds to import,
is imported by the functions that need it.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from itertools import takewhile
from typing import TYPE_CHECKING

from fedapp.core.errors import UserError

if TYPE_CHECKING:
    import torch


def gpu_count() -> int:
    """Return how many GPUs PyTorch can use; it counts those whose driver it cannot use, too."""
    import torch  # takes seconds

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def choose_device(name: str) -> torch.device:
    """Return the device a configuration names; "auto" is the first GPU, or the CPU."""
    import torch  # takes seconds

    if name == "cpu":
        return torch.device("cpu")  # and CUDA is not asked
    count = gpu_count()
    if name == "auto":
        return torch.device("cuda" if count else "cpu")
    device = torch.device(name)
    if (device.index or 0) >= count:
        raise UserError(
            f"run-config key 'device' is '{name}' but this machine has {count} CUDA devices that "
            "PyTorch can use; use 'auto' or 'cpu'"
        )
    return device


def set_float32_precision(precision: str) -> None:
    """Let this process multiply float32 as such, also in convolutions, or with "tf32" as TF32.

    PyTorch's own default is TF32 for convolutions alone. cuDNN chooses among algorithms that give
    the same bits each time.
    """
    import torch  # takes seconds

    tf32 = precision == "tf32"
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.deterministic = True


def cores() -> int:
    """Return the CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# glibc gives every large block back to the system at once, so each training step asks the system
# for its activations anew, and the system clears them page by page: 10 to 20 % of the time of a
# small CNN's step. Told to keep what was freed, it hands out the same pages again.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of malloc.h
_LARGEST_BLOCK = 32 * 2**20  # the most that glibc takes for the second one
_KEPT = 2**29


def keep_memory() -> bool:
    """Let this process keep up to 512 MB that it has freed; returns whether the C library can.

    Nothing is changed where the user has set glibc's own variables (MALLOC_...).
    """
    if any(name.startswith("MALLOC_") for name in os.environ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # not glibc
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST_BLOCK) and mallopt(_TRIM_THRESHOLD, _KEPT))


def gpu_names() -> list[str]:
    """Return the NVIDIA GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them.

    The driver is asked: importing torch would take seconds.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:  # CUDA ignores the first name that is none, and all after it
        names = (name.strip() for name in visible.split(","))
        return list(takewhile(lambda name: name not in ("", "-1", "NoDevFiles"), names))
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    listed = subprocess.run([program, "-L"], capture_output=True, text=True, check=False)
    found = [line for line in listed.stdout.splitlines() if line.startswith("GPU ")]
    return [str(n) for n in range(len(found))] if listed.returncode == 0 else []
