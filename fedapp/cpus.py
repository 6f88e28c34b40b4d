"""How many CPU cores there are: asked by what starts processes and by what starts threads."""

import os


def cores() -> int:
    """Return the CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
