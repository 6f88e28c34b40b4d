"""Adds rows of installed packages and of a user's files to the tables.

This happens once, when a process first needs a configuration. All tables are complete by then,
because a package or file may import one table to make a row of another.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from clients.training.objective import BASE_LOSSES, REGULARISERS, Regulariser
from fedapp.config.own_methods import check_method
from fedapp.core.errors import UserError
from fedapp.core.extension_files import SOURCE, ExtensionFile, import_file, read_files
from fedapp.core.plugins import extend, warn_left_out
from fedapp.data.datasets import DATASETS, DatasetInfo
from fedapp.methods.row import LossSpec, Method
from fedapp.methods.table import METHODS, method_keys
from fedapp.models.backbones import BACKBONES, BackboneInfo

Row = tuple[str, str]  # the kind of a row and its name in the table

_INCLUDED = frozenset(METHODS)  # the methods that need no package
_TABLES: dict[str, tuple[dict[str, Any], Any]] = {  # by kind; and the type of the rows
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


def own_files(names: Mapping[str, str]) -> list[ExtensionFile]:
    """Return the user's files whose rows a run uses, by name.

    `names` has the run's "method", "regulariser", "dataset" and "model".
    """
    loss = METHODS[names["method"]].loss
    rows = {*names.items(), ("loss", loss.base), ("regulariser", loss.regulariser or "")}
    return sorted({_files[row] for row in rows if row in _files}, key=str)


def foreign_keys(method: str) -> set[str]:
    """Return the keys that only other methods of packages and of the user's files have.

    They mean nothing to a run of `method`, so servers, nodes and checkpoints may differ in them.
    """
    others = METHODS.keys() - _INCLUDED - {method}
    return method_keys().keys() - method_keys(without=others).keys()


def _add_files() -> tuple[dict[Row, ExtensionFile], UserError | None]:
    """Import the user's files; return the file of each new row.

    After a mistake, which is returned, the tables are as before.
    """
    before = _copies()
    files: dict[Row, ExtensionFile] = {}
    try:
        for file in read_files():
            earlier = _copies()
            import_file(file)
            _check_unchanged(earlier)
            files |= dict.fromkeys(_rows(_copies()) - _rows(earlier), file)
        _check_rows(before)
    except UserError as mistake:
        for kind, (table, _) in _TABLES.items():
            table.clear()
            table.update(before[kind])
        return {}, mistake
    return files, None


def _copies() -> dict[str, dict[str, Any]]:
    return {kind: dict(table) for kind, (table, _) in _TABLES.items()}


def _rows(tables: Mapping[str, Mapping[str, Any]]) -> set[Row]:
    return {(kind, name) for kind, table in tables.items() for name in table}


def _check_unchanged(earlier: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise UserError if a file has replaced a row of the tables or of a file before it."""
    for kind, (table, _) in _TABLES.items():
        for name, row in table.items():
            if row is not earlier[kind].get(name, row):
                raise UserError(f"{SOURCE}: the {kind} '{name}' exists; choose another name")


def _check_rows(before: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise UserError if a new row cannot work."""
    for kind, (table, expected) in _TABLES.items():
        for name, row in table.items():
            if not isinstance(row, expected):
                raise UserError(
                    f"{SOURCE}: the {kind} '{name}' is of type {type(row).__name__}, but must be "
                    f"a {expected.__name__}"
                )
    for kind, table in (("loss", BASE_LOSSES), ("regulariser", REGULARISERS)):
        for name in table.keys() - before[kind].keys():
            row = table[name]
            _check_loss(kind, name, row.function if isinstance(row, Regulariser) else row)
    for name in METHODS.keys() - before["method"].keys():
        if mistake := _mistake_in(name):
            raise UserError(f"{SOURCE}: method '{name}': {mistake}")


def _check_loss(kind: str, name: str, function: Callable[..., Any]) -> None:
    """Raise UserError for a loss that cannot be called with a step and its rows' options."""
    losses = [row.loss for row in METHODS.values() if isinstance(row.loss, LossSpec)]
    named = [loss.options for loss in losses if kind == "loss" and loss.base == name]
    try:
        signature = inspect.signature(function)
        signature.bind(None, **{argument: None for options in named for argument in options})
    except (TypeError, ValueError):
        more = f", and what LossSpec('{name}', options=...) names" if kind == "loss" else ""
        raise UserError(
            f"{SOURCE}: the {kind} '{name}' must take one argument, the `Step` of a batch{more}"
        ) from None


def _mistake_in(method: str) -> str:
    """Return why a method's row cannot work; "" if it can."""
    try:
        check_method(METHODS[method])
    except UserError as mistake:
        return str(mistake)
    except (AttributeError, TypeError, ValueError) as error:
        return f"a part of its row has another type than in fedapp/methods/row.py ({error})"
    return ""


def _leave_out_unusable_methods() -> None:
    """Remove the methods of installed packages whose rows cannot work, with a warning each."""
    for name in sorted(METHODS.keys() - _INCLUDED):
        if mistake := _mistake_in(name):
            warn_left_out("fedapp.methods", name, mistake)
            del METHODS[name]


_leave_out_unusable_methods()
_files, _mistake = _add_files()
