"""Extensions that live in packages of their own, found without editing this project.

A package names what it adds in its entry points; a script that has no package names a class as
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
    """Return the entry points of a group of all installed packages, by name."""
    return {entry.name: entry for entry in entry_points(group=group)}


def plugin(group: str, name: str, kind: type) -> Any:
    """Return a new object of the class that an entry point of a group, or `module:Class`, names.

    Raises:
        UserError: there is no such class, it cannot be imported, or it is not a `kind`.
    """
    what = group.removeprefix("fedapp.").removesuffix("s")
    try:
        if ":" in name:
            found = resolve_name(name)
        elif name in installed(group):
            found = installed(group)[name].load()
        else:
            known = ", ".join(installed(group)) or "none"
            raise UserError(
                f"{what} '{name}' is not installed ({known} is); install the package that has it, "
                "or name its class as module:Class"
            )
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"{what} '{name}' cannot be imported: {error}") from None
    if not (isinstance(found, type) and issubclass(found, kind)):
        raise UserError(f"{what} '{name}' is not a subclass of {kind.__module__}.{kind.__name__}")
    return found()


def extend(table: dict[str, T], group: str, kind: type[T]) -> None:
    """Add the rows of installed packages to a table, under the names of their entry points.

    A row that cannot be imported, is not a `kind`, or has a name that is taken is left out, with a
    warning: one broken package does not stop the runs that make no use of it.
    """
    for name, entry in installed(group).items():
        what = f"{group} '{name}' ({entry.value})"
        try:
            row = entry.load()
        except Exception as error:
            log.warning("%s is left out: it cannot be imported: %r", what, error)
            continue
        if not isinstance(row, kind):
            log.warning("%s is left out: it is a %s, no %s", what, type(row), kind)
        elif name in table:
            log.warning("%s is left out: the name is taken", what)
        else:
            table[name] = row
