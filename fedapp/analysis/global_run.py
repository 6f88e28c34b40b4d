"""What commands on the models of a finished run share: its configuration, with a few changes."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from typing import Any

from fedapp.core.errors import UserError
from fedapp.results.run_directory import RunDirectory
from fedapp.runtime.used_files import check_extension

OVERRIDABLE = ("data-dir", "download", "device", "threads")


def run_values(
    run: RunDirectory, overrides: Mapping[str, Any], allowed: Sequence[str]
) -> dict[str, Any]:
    """Return the values of a run's configuration by key, with changes.

    Args:
        run: the run.
        overrides: the changes.
        allowed: the keys that may change; "finetune-*" names all that begin with it.

    Raises:
        UserError: another key is changed, or the run was trained with a file that is not named.
    """
    for key in overrides:
        if not any(fnmatch(key, pattern) for pattern in allowed):
            raise UserError(
                f"key '{key}' cannot differ from the run's; these can: {', '.join(allowed)}"
            )
    check_extension(run)
    return {**run.config(), **overrides}
