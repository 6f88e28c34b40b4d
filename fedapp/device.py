"""Where a process computes, and how exactly it multiplies there."""

import torch

from fedapp.errors import UserError


def gpu_count() -> int:
    """Return how many GPUs PyTorch can use; it counts those whose driver it cannot use, too."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def choose_device(name: str) -> torch.device:
    """Return the device a configuration names; "auto" is the first GPU, or the CPU."""
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
    tf32 = precision == "tf32"
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.deterministic = True
