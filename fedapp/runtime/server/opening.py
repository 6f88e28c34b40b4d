"""Opens the directory of a run: a new one, or that of an earlier run to resume.

No file of an earlier run is replaced before the checks of its configuration have passed. The
directory is locked before it is read and until the run ends, so no other process can change it.
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
from fedapp.methods.table import find_method, kept_by_clients
from fedapp.results import checkpoint
from fedapp.results.checkpoint import Checkpoint
from fedapp.results.folders import check_free, check_writable, lock_run
from fedapp.results.outcome import outcome
from fedapp.results.run_directory import RunDirectory
from fedapp.runtime.process.earlier_run import changed_file, check_same_data

log = logging.getLogger(__name__)


@contextmanager
def opened_run(
    config: RunConfig, unresolved: Mapping[str, Any], data_hash: str
) -> Iterator[tuple[RunDirectory, Checkpoint | None]]:
    """Create the run's directory, or open the one to resume and read its last checkpoint.

    Its config.toml marks the values that "auto" chose; `unresolved` is the configuration before
    that. A directory with rounds of another configuration, or of other data than those with
    `data_hash`, is refused and stays unchanged.

    Raises:
        UserError: the directory cannot be created, another process is running in it, or it cannot
            be resumed with this configuration.
    """
    parent, name = _location(config)
    with ExitStack() as stack:
        if name:
            stack.enter_context(lock_run(parent / name))
        saved = _checkpoint(parent / name, config) if config.resume else None
        if saved:
            check_same_data(RunDirectory(parent / name), data_hash)
            if saved.server_round < config.num_rounds:
                _check_states(RunDirectory(parent / name), config)
            if note := changed_schedule(parent / name, config, saved.server_round):
                log.warning(note)
        run = RunDirectory.create(
            parent,
            name,
            config.recorded(),
            resume=bool(config.resume),
            origins=config.origins(unresolved),
        )
        if not name:
            stack.enter_context(lock_run(run.path))
        run.remove_temporary()
        yield run, saved


def check_name(config: RunConfig) -> None:
    """Raise UserError if the run-name is taken, before any data are read; writes nothing."""
    parent, name = _location(config)
    check_writable(parent, "output-dir")
    if name and not config.resume:
        check_free(parent / name)


def check_place(config: RunConfig) -> None:
    """Raise UserError if the run-name is taken, or the run to resume cannot go on; writes nothing.

    Whether it had the same data and client states is not checked.
    """
    check_name(config)
    if config.resume:
        parent, name = _location(config)
        _checkpoint(parent / name, config)


def _location(config: RunConfig) -> tuple[Path, str]:
    """Return the parent folder and the name of the run's directory; empty: still to be named."""
    if config.resume not in ("", "auto"):
        path = RunDirectory.load(config.resume).path
        return path.parent, path.name
    if config.resume == "auto" and not config.run_name:
        raise UserError("resume is 'auto', so run-name must say which run to continue")
    return expanded(config.output_dir, "output-dir").resolve(), config.run_name


def _checkpoint(path: Path, config: RunConfig) -> Checkpoint | None:
    """Return the checkpoint to resume; None if `resume` is "auto" and there is none yet."""
    if checkpoint.newest(path):
        with suppress(_UnreadableError):  # then the checkpoint itself names its configuration
            _check_same(path, config, "resume with the run's own config.toml")
    if config.resume != "auto" or checkpoint.newest(path):
        saved = checkpoint.load(path, config.fingerprint())
        if saved.server_round > config.num_rounds:
            raise UserError(
                f"resume: {path.absolute()} has {saved.server_round} rounds already, so num-rounds "
                f"must be at least {saved.server_round}, not {config.num_rounds}"
            )
        return saved
    run, advice = RunDirectory(path), "it has no checkpoints: choose another run-name, or remove it"
    if run.rounds():
        _check_same(path, config, advice)
    if run.summary().get("status") == "completed":
        raise UserError(f"resume: {path.absolute()} holds a completed run, and {advice}")
    return None


class _UnreadableError(UserError):
    """The config.toml of a run directory cannot be read, or is not that of this version."""


def _check_same(path: Path, config: RunConfig, advice: str) -> None:
    """Raise UserError with the changed keys if a run directory has another configuration."""
    try:
        earlier = parse_config(RunDirectory.load(path).config())
    except UserError as error:
        _check_files(path, config)  # it may have had other keys
        raise _UnreadableError(str(error)) from None
    if earlier.fingerprint() != config.fingerprint():
        changed = ", ".join(config.changes_from(earlier))
        raise UserError(
            f"resume: {path.absolute()} holds a run with another configuration ({changed}); "
            f"{advice}"
        )
    _check_files(path, config)  # `earlier` was parsed with the file of now


def _check_files(path: Path, config: RunConfig) -> None:
    """Raise UserError if an ended run used another file, or another version of it."""
    if change := changed_file(RunDirectory(path), config):
        raise UserError(
            f"resume: {path.absolute()} was trained with {change}; "
            "restore the file, or choose another run-name"
        )


def _check_states(run: RunDirectory, config: RunConfig) -> None:
    """Raise UserError if an ended run cannot go on because its clients' states are removed."""
    before, how = run.config(), outcome(run)
    kept = before.get("keep-state") or (how == "diverged" and before.get("tolerate-failures"))
    if how and not kept and kept_by_clients(config.flat()) and config.state_missing == "error":
        raise UserError(
            f"resume: {run.path.absolute()} has {outcome(run)}, and its clients' states were "
            "removed at its end because keep-state was false: train from the start with another "
            "run-name, or (FedCurv cannot) go on with new states by state-missing='reinit'"
        )


def changed_schedule(path: Path, config: RunConfig, done: int) -> str:
    """Return a warning if a new num-rounds would have changed the `done` rounds of a run.

    Empty if these rounds equal those of a run with the new number from the start.
    """
    before = None
    with suppress(UserError):  # a damaged config.toml will be replaced
        before = RunDirectory.load(path).config().get("num-rounds")
    if not isinstance(before, int) or before == config.num_rounds:
        return ""
    earlier = config.model_copy(update={"num_rounds": before})
    rates_differ = any(earlier.lr_at(r) != config.lr_at(r) for r in range(1, done + 1))
    changes = [f"learning rate (lr-schedule '{config.lr_schedule}')"] if rates_differ else []
    changes += filter(None, [find_method(config.method).scheduled])
    if not changes:
        return ""
    rounds = config.num_rounds
    return (
        f"num-rounds is {rounds} and was {before}: a run of {rounds} rounds from the start would "
        f"have had another {' and another '.join(changes)} in its first {done} rounds"
    )
