"""Computation whose result does not depend on the machine's number of cores."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Compute with this number of threads, on which the last bits of sums depend; 0: as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread, so that sums do not depend on the machine's number of cores."""
    with threads(1):
        yield
