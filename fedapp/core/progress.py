"""A progress bar for work that has no rounds: decoding, fine-tuning, analyses, benchmarks."""

import logging
import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")
_shown = False  # in this process: workers show none


def show_progress() -> None:
    """Show bars in this process from now on, if stderr is a terminal."""
    global _shown
    _shown = True


def tracked(items: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
    """Yield the items; show a bar on stderr meanwhile, unless --quiet hides progress messages.

    `total` is the number of items, if they have no length.
    """
    visible = _shown and sys.stderr.isatty()
    if not visible or not logging.getLogger("fedapp").isEnabledFor(logging.INFO):
        yield from items
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Remaining

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        Remaining(),
    )
    screen = Console(stderr=True, markup=False)
    with Progress(*columns, console=screen, transient=True) as bars:
        yield from bars.track(items, total=total, description=what)
