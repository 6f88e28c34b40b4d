"""Keeping memory that a training step frees for the next step.

glibc gives every large block back to the system at once, so each training step asks the system for
its activations anew, and the system clears them page by page: 10 to 20 % of the time of a small
CNN's step. Told to keep what was freed, it hands out the same pages again. The values that are
computed do not change.
"""

import ctypes
import os

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
