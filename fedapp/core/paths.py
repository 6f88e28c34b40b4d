"""Paths that a user names, folders of this user, and names that are safe as folder names."""

import os
import re
from pathlib import Path

from fedapp.core.errors import UserError


def expanded(place: str | Path, what: str) -> Path:
    """Return a path without `~`; `what` says where a user named it, such as a key or a variable.

    Raises UserError where it begins with the home folder of nobody.
    """
    try:
        return Path(place).expanduser()
    except RuntimeError:
        raise UserError(
            f"{what} is '{place}' but there is no such home folder; write the whole path"
        ) from None


def absolute(place: str | Path, what: str) -> Path:
    """Return an absolute path; raises UserError as `expanded` does."""
    return expanded(place, what).absolute()


def state_folder(chosen: str | Path | None = None) -> Path:
    """Return the folder of all runs' states: `chosen`, $FEDAPP_STATE, or one beside the cache.

    Raises UserError where that is in the home folder of nobody.
    """
    if folder := chosen or os.environ.get("FEDAPP_STATE"):
        return absolute(folder, "state-dir" if chosen else "FEDAPP_STATE")
    cache = cache_folder()
    return cache.with_name(f"{cache.name}-state")  # emptying the cache must not lose models


def cache_folder() -> Path:
    """Return the folder for this user's decoded data: $FEDAPP_CACHE or the platform's habit.

    Raises UserError where that is in the home folder of nobody.
    """
    if own := os.environ.get("FEDAPP_CACHE"):
        return absolute(own, "FEDAPP_CACHE")
    return absolute(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "XDG_CACHE_HOME") / "fedapp"


def is_folder_name(name: str) -> bool:
    """Return whether a name stays one folder wherever it is put, on Windows too."""
    return name not in {"", ".", ".."} and not set(name) & set("/\\\0")


def folder_name(text: str) -> str:
    """Return a text as part of a folder's name: all but letters, digits and + - . = becomes _."""
    return re.sub(r"[^\w.+=-]+", "_", text)
