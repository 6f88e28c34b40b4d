"""What commands on the models of a finished run share: configuration and clients."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from typing import Any

from clients.base import LocalClient
from clients.state.store import StateError
from fedapp.core.arrays import Arrays
from fedapp.core.errors import UserError
from fedapp.results.run_directory import RunDirectory
from fedapp.runtime.process.context import ProcessContext
from fedapp.runtime.process.earlier_run import check_extension

OVERRIDABLE = ("data-dir", "download", "device", "threads")


def run_values(
    run: RunDirectory, overrides: Mapping[str, Any], allowed: Sequence[str]
) -> dict[str, Any]:
    """Return the values of a run's configuration by key, with changes and without initial-model.

    The weights from which the run started are not needed: the final ones replace them.

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
    return {**run.config(), "initial-model": "", **overrides}


def client_after(
    process: ProcessContext,
    client: int,
    server_round: int,
    state_key: str,
    extras: Mapping[str, Arrays] | None = None,
) -> LocalClient | None:
    """Return a client as it was after a round, with the state that it has kept under a key.

    None if it should have a state and has none on this machine. With an empty key it needs none; a
    client that never trains has none.
    Raises UserError if the state cannot be read.
    """
    memory = process.memory(client, state_key, server_round + 1)
    own = process.client(client, memory, extras, server_round)
    try:
        needs = process.method.kept(None, process.config.flat())  # without a regulariser's state
        lacks = memory is not None and needs and not own.stored_state
        return None if lacks and client < process.config.training_clients else own
    except StateError as error:
        raise UserError(f"client {client}'s model cannot be read: {error}") from None
