"""Where clients' states lie: one rule for nodes that write them and commands that list them."""

import os
from pathlib import Path


def state_folder(chosen: str | Path | None = None) -> Path:
    """Return the folder of all runs' states: `chosen`, $FEDAPP_STATE, or one beside the cache."""
    if folder := chosen or os.environ.get("FEDAPP_STATE"):
        return Path(folder).expanduser().absolute()
    from fedapp.data.cache import cache_folder  # imports NumPy

    cache = cache_folder()
    return cache.with_name(f"{cache.name}-state")  # emptying the cache must not lose models
