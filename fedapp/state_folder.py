"""Where clients' states lie: one rule for nodes that write them and commands that list them."""

import os
from pathlib import Path

from fedapp.places import absolute


def state_folder(chosen: str | Path | None = None) -> Path:
    """Return the folder of all runs' states: `chosen`, $FEDAPP_STATE, or one beside the cache.

    Raises UserError where that is in the home folder of nobody.
    """
    if folder := chosen or os.environ.get("FEDAPP_STATE"):
        return absolute(folder, "state-dir" if chosen else "FEDAPP_STATE")
    from fedapp.data.cache import cache_folder  # imports NumPy

    cache = cache_folder()
    return cache.with_name(f"{cache.name}-state")  # emptying the cache must not lose models
