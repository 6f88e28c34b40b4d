"""The hardware of a process: cores, memory, GPUs, and their floating-point precision.

Processes that only start others also need the numbers of cores and GPUs. PyTorch takes seconds to
import, so only the functions that need it import it.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from functools import cache
from itertools import takewhile
from typing import TYPE_CHECKING

from fedapp.core.errors import UserError

if TYPE_CHECKING:
    import torch


_PATIENCE = 60.0  # seconds for nvidia-smi, which hangs if a GPU is lost


def gpu_count() -> int:
    """Return how many GPUs PyTorch can use; 0 with an unusable driver, despite `device_count`."""
    import torch  # takes seconds

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def choose_device(name: str) -> torch.device:
    """Return the device a configuration names; "auto" is the first GPU, or the CPU."""
    import torch  # takes seconds

    if name == "cpu":
        return torch.device("cpu")  # without a call to CUDA
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
    """Let this process multiply in full float32, also in convolutions, or with "tf32" in TF32.

    PyTorch's default is TF32 for convolutions only. cuDNN may use deterministic algorithms only.
    """
    import torch  # takes seconds

    tf32 = precision == "tf32"
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.deterministic = True


def cores() -> int:
    """Return the CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# By default glibc returns every large freed block to the system at once. Each training step then
# allocates its activations anew, and the system clears them page by page: 10 to 20 % of the time of
# a small CNN's step. With these settings glibc keeps freed memory and reuses the same pages.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of malloc.h
_LARGEST_BLOCK = 32 * 2**20  # the largest value that glibc accepts for _MMAP_THRESHOLD
_KEPT = 2**29


def keep_memory() -> bool:
    """Let this process keep up to 512 MB of freed memory; return whether the C library can.

    Nothing changes if the user has set glibc's own variables (MALLOC_...).
    """
    if any(name.startswith("MALLOC_") for name in os.environ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # not glibc
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST_BLOCK) and mallopt(_TRIM_THRESHOLD, _KEPT))


def gpu_names() -> list[str]:
    """Return the NVIDIA GPUs that this process may use, named as in CUDA_VISIBLE_DEVICES.

    This calls nvidia-smi, because importing torch would take seconds.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:  # CUDA ignores the first invalid name and all names after it
        names = (name.strip() for name in visible.split(","))
        return list(takewhile(lambda name: name not in ("", "-1", "NoDevFiles"), names))
    return [str(n) for n in range(_listed_gpus(shutil.which("nvidia-smi")))]


@cache
def _listed_gpus(program: str | None) -> int:
    """Return how many GPUs nvidia-smi lists, which can take seconds; none without the program."""
    if program is None:
        return 0
    try:
        listed = subprocess.run(
            [program, "-L"], capture_output=True, text=True, check=False, timeout=_PATIENCE
        )
    except subprocess.TimeoutExpired:
        raise UserError(
            f"{program} -L does not answer: a GPU may be lost (restart the machine); "
            "CUDA_VISIBLE_DEVICES='' hides all GPUs"
        ) from None
    gpus = [line for line in listed.stdout.splitlines() if line.startswith("GPU ")]
    return len(gpus) if listed.returncode == 0 else 0
