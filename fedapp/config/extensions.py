"""Adds rows of installed packages and of a user's files to the tables.

This happens once, when a process first needs a configuration. All tables are complete by then,
because a package or file may import one table to make a row of another.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from clients.training.objective import BASE_LOSSES, REGULARISERS, Regulariser
from fedapp.config.key_groups import kebab
from fedapp.config.run_keys import RunKeys
from fedapp.core.errors import UserError
from fedapp.core.extension_files import VARIABLE, digests, import_files
from fedapp.core.plugins import extend
from fedapp.data.datasets import DATASETS, DatasetInfo
from fedapp.methods.row import Method
from fedapp.methods.table import METHODS, method_keys
from fedapp.models.backbones import BACKBONES, BackboneInfo

_INCLUDED = frozenset(METHODS)  # the methods that need no package
_TABLES: dict[str, tuple[dict[str, Any], Any]] = {  # and the types of their rows
    "method": (METHODS, Method),
    "loss": (BASE_LOSSES, Callable),
    "regulariser": (REGULARISERS, Regulariser),
    "dataset": (DATASETS, DatasetInfo),
    "model": (BACKBONES, BackboneInfo),
}

extend(DATASETS, "fedapp.datasets", DatasetInfo)
extend(BACKBONES, "fedapp.models", BackboneInfo)
extend(METHODS, "fedapp.methods", Method)

__all__ = ["BACKBONES", "DATASETS", "METHODS", "check_files", "foreign_keys", "own_files"]


def check_files() -> None:
    """Raise UserError if a file of the user's could not be imported or does not fit."""
    if _mistake is not None:
        raise _mistake


def own_files(names: Mapping[str, str]) -> str:
    """Return names and hashes of the user's files if a run uses a row of theirs; else "".

    `names` has the run's names in some of the tables.
    """
    used = any(names[kind] in _TABLES[kind][0].keys() - _before[kind].keys() for kind in names)
    return digests(_files) if used else ""


def foreign_keys(method: str) -> set[str]:
    """Return the keys that only other methods of installed packages have.

    They mean nothing to a run of `method`, so servers, nodes and checkpoints may differ in them.
    """
    others = METHODS.keys() - _INCLUDED - {method}
    return method_keys().keys() - method_keys(without=others).keys()


def _with_files() -> tuple[list[Path], UserError | None]:
    """Import the user's files; after a mistake, which is returned, the tables are unchanged."""
    try:
        files = import_files()
        _check_rows()
    except UserError as mistake:
        for kind, (table, _) in _TABLES.items():
            table.clear()
            table.update(_before[kind])
        return [], mistake
    return files, None


def _check_rows() -> None:
    """Raise UserError if a row is of another type, replaces one, or has another method's key."""
    for kind, (table, expected) in _TABLES.items():
        for name, row in table.items():
            if row is not _before[kind].get(name, row):
                raise UserError(f"{VARIABLE}: the {kind} '{name}' exists; choose another name")
            if not isinstance(row, expected):
                raise UserError(
                    f"{VARIABLE}: the {kind} '{name}' is a {type(row).__name__}, but must be a "
                    f"{expected.__name__}"
                )
    try:
        keys = {name.replace("-", "_") for name in method_keys()}
    except ValueError as error:
        raise UserError(f"{VARIABLE}: {error}") from None
    if taken := sorted(keys & RunKeys.model_fields.keys()):
        raise UserError(f"{VARIABLE}: the key '{kebab(taken[0])}' exists; choose another name")


_before = {kind: dict(table) for kind, (table, _) in _TABLES.items()}
_files, _mistake = _with_files()
