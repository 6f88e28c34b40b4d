"""Paths that a user names, folders of this user, and names that are safe as folder names."""

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedapp.core.errors import UserError

LONGEST_NAME = 240  # bytes; file systems allow 255, and NAME.log is longer


def expanded(path: str | Path, what: str) -> Path:
    """Return a path without `~`; `what` names its source, such as a key or a variable.

    Raises UserError if it begins with the home folder of an unknown user.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise UserError(
            f"{what} is '{path}' but there is no such home folder; write the whole path"
        ) from None


@contextmanager
def readable(path: Path, what: str) -> Iterator[None]:
    """Raise UserError where a path cannot be looked at; `what` names its source, such as a key.

    Python before 3.12 raises an error for a path that is too long or in a closed folder.
    """
    try:
        yield
    except OSError as error:
        raise UserError(f"{what}: {path} cannot be read: {error.strerror}") from None


def absolute(path: str | Path, what: str) -> Path:
    """Return an absolute path; raises UserError as in `expanded`."""
    return expanded(path, what).absolute()


def name_and_hash(path: Path, content: bytes) -> str:
    """Return the name of a user's file and a hash of its content, as runs record and compare it."""
    return f"{path.name} {hashlib.sha256(content).hexdigest()[:16]}"


def state_folder(chosen: str | Path | None = None) -> Path:
    """Return the folder of all runs' states: `chosen`, $FEDAPP_STATE, or one beside the cache.

    Raises UserError if the path begins with the home folder of an unknown user.
    """
    if folder := chosen or os.environ.get("FEDAPP_STATE"):
        return absolute(folder, "state-dir" if chosen else "FEDAPP_STATE")
    cache = cache_folder()
    return cache.with_name(f"{cache.name}-state")  # outside the cache, which users may empty


def cache_folder() -> Path:
    """Return the folder for this user's decoded data: $FEDAPP_CACHE or the platform's default.

    Raises UserError if the path begins with the home folder of an unknown user.
    """
    if own := os.environ.get("FEDAPP_CACHE"):
        return absolute(own, "FEDAPP_CACHE")
    return absolute(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "XDG_CACHE_HOME") / "fedapp"


def is_folder_name(name: str) -> bool:
    """Return whether a name is a single folder name, also on Windows, and not too long for one."""
    plain = name not in {"", ".", ".."} and not set(name) & set("/\\\0")
    return plain and len(name.encode()) <= LONGEST_NAME


def folder_name(text: str, end: str = "") -> str:
    """Return a text as a part of a folder name: only letters, digits and _ + - . = remain.

    A hash takes the place of the rest of a long text, before `end`.
    """
    name = re.sub(r"[^\w.+=-]+", "_", text)
    if len(f"{name}{end}".encode()) <= LONGEST_NAME:
        return f"{name}{end}"
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    kept = name.encode()[: LONGEST_NAME - 9 - len(end.encode())].decode(errors="ignore")
    return f"{kept}-{digest}{end}"
