"""Extensions in packages of their own, which need no change of this project.

A package lists its extensions in its entry points. A script without a package names a class as
`module:Class`.
"""

import logging
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pkgutil import resolve_name
from typing import Any, TypeVar

from fedapp.core.errors import UserError

log = logging.getLogger(__name__)
T = TypeVar("T")


@cache
def installed(group: str) -> dict[str, EntryPoint]:
    """Return all installed packages' entry points of a group, by name."""
    return {entry.name: entry for entry in entry_points(group=group)}


def plugin(group: str, name: str, kind: type) -> Any:
    """Return a new object of the class of an entry point of a group, or of `module:Class`.

    Raises:
        UserError: the class does not exist, cannot be imported, or is not a subclass of `kind`.
    """
    what = group.removeprefix("fedapp.").removesuffix("s")
    try:
        if ":" in name:
            factory = resolve_name(name)
        elif name in installed(group):
            factory = installed(group)[name].load()
        else:
            known = ", ".join(installed(group)) or "none"
            raise UserError(
                f"{what} '{name}' is not installed ({known} is); install the package that has it, "
                "or name its class as module:Class"
            )
    except UserError:
        raise
    except Exception as error:  # whatever its module does
        raise UserError(f"{what} '{name}' cannot be imported: {reason(error)}") from None
    if not (isinstance(factory, type) and issubclass(factory, kind)):
        raise UserError(f"{what} '{name}' is not a subclass of {kind.__module__}.{kind.__name__}")
    try:
        return factory()
    except Exception as error:
        raise UserError(
            f"{what} '{name}' cannot be made without arguments: {reason(error)}"
        ) from None


def extend(table: dict[str, T], group: str, kind: type[T]) -> None:
    """Add the rows of installed packages to a table, under the names of their entry points.

    A row that cannot be imported, is not a `kind`, or has an existing name is left out with a
    warning, so that a broken package does not stop runs that do not use it.
    """
    for name, entry in installed(group).items():
        try:
            row = entry.load()
        except Exception as error:
            warn_left_out(group, name, f"it cannot be imported: {reason(error)}")
            continue
        if not isinstance(row, kind):
            warn_left_out(group, name, f"it is a {type(row)}, no {kind}")
        elif name in table:
            warn_left_out(group, name, "the name is taken")
        else:
            table[name] = row


def reason(error: Exception) -> str:
    """Return an error with its type: the text of some, such as a KeyError, says little alone."""
    return f"{type(error).__name__}: {error}"


def warn_left_out(group: str, name: str, why: str) -> None:
    """Log that the row of an installed package is not used."""
    log.warning("%s '%s' (%s) is left out: %s", group, name, installed(group)[name].value, why)
