"""Opening the directory of a run: a new one, or an earlier one to go on from its last checkpoint.

Nothing of an earlier run is replaced before it is clear that this one may go on from it, and no
other process can come between: the directory is locked from before it is read until the run ends.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from fedapp.config.resolve import parse_config
from fedapp.config.run_config import RunConfig
from fedapp.core.errors import UserError
from fedapp.core.paths import expanded
from fedapp.methods.table import find_method
from fedapp.results import checkpoint
from fedapp.results.checkpoint import Checkpoint
from fedapp.results.folders import check_free, lock_run
from fedapp.results.run_directory import RunDirectory

log = logging.getLogger(__name__)


@contextmanager
def opened_run(
    config: RunConfig, asked: Mapping[str, Any]
) -> Iterator[tuple[RunDirectory, Checkpoint | None]]:
    """Make the run's directory, or open the one to resume and read the checkpoint to go on from.

    Its config.toml says which values "auto" chose, where `asked` is the configuration unresolved.
    Rounds that another configuration left there are refused before a file of theirs is replaced.

    Raises:
        UserError: there can be no such directory, another process is running in it, or it cannot be
            resumed with this configuration.
    """
    parent, name = _place(config)
    with ExitStack() as stack:
        if name:
            stack.enter_context(lock_run(parent / name))
        saved = _earlier(parent / name, config) if config.resume else None
        if saved and (note := changed_schedule(parent / name, config, saved.server_round)):
            log.warning(note)
        run = RunDirectory.create(
            parent, name, config.flat(), resume=bool(config.resume), chosen=config.chosen(asked)
        )
        if not name:
            stack.enter_context(lock_run(run.path))
        yield run, saved


def check_name(config: RunConfig) -> None:
    """Raise UserError for a run-name that is taken, before data are read; writes nothing."""
    parent, name = _place(config)
    if name and not config.resume:
        check_free(parent / name)


def _place(config: RunConfig) -> tuple[Path, str]:
    """Return the folder of the run's directory and its name, which is empty if it is to be made."""
    if config.resume not in ("", "auto"):
        path = RunDirectory.load(config.resume).path
        return path.parent, path.name
    if config.resume == "auto" and not config.run_name:
        raise UserError("resume is 'auto', so run-name must say which run to continue")
    return expanded(config.output_dir, "output-dir").resolve(), config.run_name


def _earlier(path: Path, config: RunConfig) -> Checkpoint | None:
    """Return the checkpoint to resume, or None where `resume` is "auto" and there is none yet."""
    if config.resume != "auto" or checkpoint.newest(path):
        return checkpoint.load(path, config.fingerprint())
    if not RunDirectory(path).rounds():
        return None
    made = parse_config(RunDirectory.load(path).config())
    if made.fingerprint() != config.fingerprint():
        raise UserError(
            f"resume: {path.absolute()} holds a run with another configuration and without "
            "checkpoints; choose another run-name, or remove that run"
        )
    return None


def changed_schedule(path: Path, config: RunConfig, done: int) -> str:
    """Return what another num-rounds changes in a run of which `done` rounds are done.

    Empty if its rounds so far are those of a run that had this number from the start.
    """
    before = None
    with suppress(UserError):  # config.toml is damaged: it will be replaced
        before = RunDirectory.load(path).config().get("num-rounds")
    if not isinstance(before, int) or before == config.num_rounds:
        return ""
    earlier = config.model_copy(update={"num_rounds": before})
    others = [r for r in range(1, done + 1) if earlier.lr_at(r) != config.lr_at(r)]
    changes = [f"learning rate (lr-schedule '{config.lr_schedule}')"] if others else []
    changes += filter(None, [find_method(config.method).scheduled])
    if not changes:
        return ""
    rounds = config.num_rounds
    return (
        f"num-rounds is {rounds} and was {before}: a run of {rounds} rounds from the start would "
        f"have had another {' and another '.join(changes)} in its first {done} rounds"
    )
