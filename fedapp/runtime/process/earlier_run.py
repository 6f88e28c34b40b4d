"""An earlier run, opened again: with the data and the user's files that it was trained on.

summary.json records names and hashes of the user's files: extension, split and initial model. Thus
a finished run is neither measured nor resumed with other files, nor counted as the completed run of
a sweep that has other files.
"""

import os
import shlex
from contextlib import suppress
from pathlib import Path

from fedapp.config.run_config import RunConfig
from fedapp.core.errors import UserError
from fedapp.core.extension_files import OPTION, VARIABLE
from fedapp.data.partition.split_file import find_split, source
from fedapp.models.initial import digest, find_initial
from fedapp.results.run_directory import RunDirectory
from fedapp.runtime.process.context import ProcessContext

_INITIAL = "initial model"


def reopened(run: RunDirectory, config: RunConfig, own: int | None = None) -> ProcessContext:
    """Return the data and the model of an earlier run, to measure it.

    With partition 'own', `own` is the client whose data the data folder contains; None: the
    server's.

    Raises:
        UserError: they cannot be loaded, or the run was trained with other files, or on other data.
            With partition 'own' the data are not checked: the clients' are on their hosts.
    """
    process = ProcessContext(config, own=own)
    if change := changed_file(run, config):
        raise UserError(f"{run.path.absolute()} was trained with {change}; restore the file")
    if config.partition != "own":
        check_same_data(run, process.data.hash)
    return process


def check_same_data(run: RunDirectory, data_hash: str) -> None:
    """Raise UserError if the rounds of a run directory were trained on other data.

    Runs of earlier versions have the first of the two hashes only.
    """
    earlier = run.partition().get("data_hash") or data_hash
    if earlier not in (data_hash, data_hash.partition(":")[0]):
        raise UserError(
            f"the data, or their division among the clients, differ from those of the run in "
            f"{run.path.absolute()}; it needs its data-dir and partition-file as they were"
        )


def recorded_files(process: ProcessContext) -> dict[str, str]:
    """Return each file's name and hash as of the start of a run, "none" without one."""
    return {**process.files, _INITIAL: _initial(process.initial, process.initial_hash)}


def changed_file(run: RunDirectory, config: RunConfig) -> str:
    """Return "the split a.json 12ab instead of b.json 34cd" for a changed file; "" for none.

    What the run did not record, in an earlier version or because it has not ended, counts as
    unchanged; so does a renamed file, and an initial model that is not on this machine or that the
    configuration leaves out.
    """
    before = run.summary().get("versions") or {}
    for kind, current in _now(config).items():
        if change := _difference(kind, before.get(kind, current), current):
            return change
    return ""


def check_extension(run: RunDirectory, config: RunConfig | None = None) -> None:
    """Raise UserError if a run was trained with a file of the user's, and none is named now.

    The message has the file's path on the machine of the run, from summary.json's command. With the
    run's configuration, which needs the file, another content is refused, too.
    """
    used = run.used_files().get("extension")
    if not used:
        return
    if not os.environ.get(VARIABLE):
        options = " ".join(f"{OPTION} {shlex.quote(file)}" for file in _named(run, used))
        raise UserError(f"{run.path} was trained with files of your own: name them by {options}")
    if config and (change := _difference("extension", used, config.extension())):
        raise UserError(f"{run.path} was trained with {change}; restore the file")


def _named(run: RunDirectory, used: str) -> list[str]:
    """Return the paths in the command of a run, or the names in "a.py 12ab, b.py 34cd"."""
    for word in shlex.split(str(run.summary().get("command", ""))):
        if word.startswith(f"{VARIABLE}="):
            return word.partition("=")[2].split(os.pathsep)
    return [file.rpartition(" ")[0] for file in used.split(", ")]


def _difference(kind: str, earlier: str, current: str) -> str:
    """Return "the split a.json 12ab instead of b.json 34cd"; "" for equal contents."""
    same = _contents(earlier) == _contents(current)
    return "" if same else f"the {kind} {earlier} instead of {current}"


def _contents(files: str) -> list[str]:
    """Return the hashes in "a.py 12ab, b.py 34cd"."""
    return [file.rpartition(" ")[2] for file in files.split(", ")]


def _now(config: RunConfig) -> dict[str, str]:
    now = {"extension": config.extension(), "split": "none"}
    if config.partition_file:
        now["split"] = source(find_split(config.partition_file, config.data_dir))
    if config.initial_model:
        with suppress(UserError, OSError):
            path = find_initial(config.initial_model, config.data_dir)
            now[_INITIAL] = _initial(path, digest(path))
    return now


def _initial(path: Path | None, content_hash: str) -> str:
    return "none" if path is None else f"{path.name} {content_hash}"
