"""What commands on the final global model of a run share: its configuration, with a few changes."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from typing import Any

from fedapp.core.errors import UserError
from fedapp.results.run_directory import RunDirectory
from fedapp.runtime.global_model import check_global_model
from fedapp.runtime.used_files import check_extension

OVERRIDABLE = ("data-dir", "download", "device", "threads")


def run_values(
    run: RunDirectory, overrides: Mapping[str, Any], allowed: Sequence[str], remedy: str = ""
) -> dict[str, Any]:
    """Return the values of a run's configuration by key, with changes.

    Args:
        run: the run, whose clients' data are read here.
        overrides: the changes.
        allowed: the keys that may change; "finetune-*" names all that begin with it.
        remedy: the end of the sentence for a run whose clients' data are on their own hosts; empty
            if their data are not needed.

    Raises:
        UserError: another key is changed, the method has no global model, the run was trained with
            a file that is not named, or the clients' data are needed and on their own hosts.
    """
    for key in overrides:
        if not any(fnmatch(key, pattern) for pattern in allowed):
            raise UserError(
                f"key '{key}' cannot differ from the run's; these can: {', '.join(allowed)}"
            )
    saved = run.config()
    check_extension(run)
    check_global_model(str(saved.get("method")))
    if remedy and saved.get("partition") == "own":
        raise UserError(
            f"the data of the clients of {run.path} stay on their hosts (partition 'own'), so its "
            f"model {remedy}"
        )
    return {**saved, **overrides}
