"""Checkpoints of a run: the global model and the strategy's state after a round.

A checkpoint is written to a temporary file, synced and renamed, so an interruption at any moment
leaves the previous checkpoint complete. Nothing is pickled.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open

from clients.state.store import sync_folder
from fedapp.core.arrays import Arrays
from fedapp.core.errors import UserError
from fedapp.core.files import safetensors_bytes, write_atomically

_MODEL, _STATE = "model/", "strategy/"
_FORMAT = 2


@dataclass(frozen=True)
class Checkpoint:
    """The data that a run needs to continue after a round."""

    server_round: int
    fingerprint: str  # of the run's configuration
    arrays: Arrays
    strategy: Arrays


def save(folder: Path, checkpoint: Checkpoint, keep: int) -> Path:
    """Write a checkpoint atomically, keep the newest `keep` (0: all) and return its path."""
    path = folder / f"round-{checkpoint.server_round:06d}.safetensors"
    tensors = {_MODEL + name: array for name, array in checkpoint.arrays.items()}
    tensors |= {_STATE + name: array for name, array in checkpoint.strategy.items()}
    header = {
        "format": _FORMAT, "round": checkpoint.server_round,
        "configuration": checkpoint.fingerprint,
    }  # fmt: skip
    write_atomically(path, safetensors_bytes(tensors, {"checkpoint": json.dumps(header)}))
    sync_folder(folder)  # clients on other hosts may have stored the next round
    for old in list(by_round(folder).values())[:-keep] if keep else ():
        old.unlink()
    return path


def by_round(folder: Path) -> dict[int, Path]:
    """Return the checkpoints in a folder by their round, in ascending order."""
    named = {file.stem.removeprefix("round-"): file for file in folder.glob("round-*.safetensors")}
    return dict(sorted((int(name), file) for name, file in named.items() if name.isdecimal()))


def newest(path: Path) -> Path | None:
    """Return the checkpoint at `path`, or the newest in that run directory; None if none exists."""
    if path.is_file():
        return path
    return next(reversed(by_round(path / "checkpoints").values()), None)


def load(path: Path, fingerprint: str) -> Checkpoint:
    """Read the checkpoint at `path`, or the newest in that run directory.

    Raises:
        UserError: there is no checkpoint, it is damaged, or it has another configuration.
    """
    file_path = newest(path)
    if file_path is None:
        raise UserError(
            f"resume: there is no checkpoint in {path.absolute() / 'checkpoints'}; a run saves "
            "them if checkpoint-every is above 0"
        )
    try:
        with safe_open(file_path, "np") as file:
            header = dict(json.loads((file.metadata() or {})["checkpoint"]))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, KeyError, OSError, TypeError, ValueError) as error:
        raise _incomplete(file_path, error) from None
    if header.get("format", 1) != _FORMAT:
        raise UserError(
            f"{file_path.absolute()} was written by another version of fedapp (format "
            f"{header.get('format', 1)}, not {_FORMAT}); resume or analyse the run with that one"
        )
    try:
        configuration, last = str(header["configuration"]), int(header["round"])
    except (KeyError, TypeError, ValueError) as error:
        raise _incomplete(file_path, error) from None
    if configuration != fingerprint:
        raise UserError(
            f"resume: {file_path.absolute()} was made with another configuration "
            f"({configuration}, not {fingerprint}); resume with the run's own "
            "config.toml and, for a method of your own, with the same file; a version of fedapp "
            "with other keys makes another configuration, too"
        )
    return Checkpoint(last, fingerprint, _part(tensors, _MODEL), _part(tensors, _STATE))


def _incomplete(path: Path, error: Exception) -> UserError:
    return UserError(f"resume: {path.absolute()} is not a complete checkpoint: {error}")


def _part(tensors: Arrays, prefix: str) -> Arrays:
    return {n.removeprefix(prefix): array for n, array in tensors.items() if n.startswith(prefix)}
