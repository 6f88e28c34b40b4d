"""The folder on a node's host that keeps what must outlast a message, made before round 1."""

from pathlib import Path

from clients.state.store import make_private
from fedapp.core.errors import UserError
from fedapp.core.paths import state_folder
from fedapp.results.folders import check_writable


def state_folder_of(chosen: str, purpose: str, inside: str = "") -> Path:
    """Make the folder that a `state-dir` names, or a folder `inside` it, for its owner only.

    Raises:
        UserError: it cannot be made or written; `purpose` says what for.
    """
    folder = state_folder(chosen) / inside
    try:
        make_private(folder)
    except OSError as error:
        raise UserError(
            f"{purpose} in {folder}, which cannot be made ({error.strerror or error}): name "
            "another folder by the node-config key 'state-dir'"
        ) from None
    check_writable(folder, "state-dir")
    return folder
