"""The models of a run: model.safetensors, if it is that of the run's last round, and others.

Beside it may lie the model with the highest accuracy, best.safetensors, the final one with a
calibrated head, calibrated.safetensors, and the statistics with which it is calibrated,
class_statistics.safetensors.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np

from fedapp.core.errors import UserError
from fedapp.data.image_format import ImageFormat
from fedapp.results.run_directory import RunDirectory
from fedapp.results.which_model import BEST, CALIBRATED, FINAL, Which

_MADE_FROM = "sha256-of-model"  # in the metadata of files that were made from the model


@dataclass(frozen=True)
class KeptBest:
    """The round and the accuracy, in 0..1, of the best model that a run has kept so far."""

    server_round: int
    accuracy: float


def model_file(run: RunDirectory, which: str = FINAL) -> Path:
    """Return where a model of a run is; raises UserError for a word that is not one of `Which`."""
    if which not in get_args(Which):
        words = ", ".join(f"'{word}'" for word in get_args(Which))
        raise UserError(f"'{which}' is no model of a run: {words}")
    return run.model_path if which == FINAL else run.path / f"{which}.safetensors"


def kept_best(run: RunDirectory) -> KeptBest | None:
    """Return what best.safetensors is; None if there is none, or it does not say it."""
    file = model_file(run, BEST)
    try:
        words = read_metadata(file) if file.is_file() else {}
        return KeptBest(int(words["round"]), float(words["accuracy"]))
    except (UserError, KeyError, ValueError):
        return None


def statistics_file(run: RunDirectory) -> Path:
    """Return where the statistics of the clients' features by a run's final model are."""
    return run.path / "class_statistics.safetensors"


def has_model(run: RunDirectory) -> bool:
    """Return whether the run has ended and saved its model.

    While a run goes on, and after it was killed, the file is that of an earlier end.
    """
    return bool(run.summary()) and run.model_path.exists()


def read_image_format(run: RunDirectory) -> ImageFormat:
    """Return what images a run's final model takes.

    Raises:
        UserError: the run has not ended, has saved no model, or the file does not say it.
    """
    _check(run)
    return ImageFormat.of_metadata(read_metadata(run.model_path), run.model_path)


def read_model(run: RunDirectory, which: str = FINAL) -> dict[str, np.ndarray]:
    """Return the tensors of a model of a run, by name.

    Raises:
        UserError: the run has not ended, has saved no such model, or the file is damaged.
    """
    _check(run)
    file, remedy = model_file(run, which), f"`fedapp calibrate {run.path}`"
    if not file.is_file():
        maker = remedy if which == CALIBRATED else "a run with keep-best=true"
        raise UserError(f"{file} is missing; {maker} makes it")
    if which == CALIBRATED:
        check_made_from(file, run, f"repeat {remedy}")
    if which == BEST:
        _check_best(run, file)
    return read_arrays(file)


def read_arrays(file: Path) -> dict[str, np.ndarray]:
    """Return the tensors of a model's file by name; raises UserError if it is damaged."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return dict(load_file(file))
    except (SafetensorError, TypeError, ValueError) as error:  # TypeError: a type unknown to NumPy
        raise not_its_model(file, error) from None


def made_from(run: RunDirectory) -> dict[str, str]:
    """Return what a file that is made from a run's final model says about this model."""
    with open(run.model_path, "rb") as file:
        return {_MADE_FROM: hashlib.file_digest(file, "sha256").hexdigest()}


def not_its_model(file: Path, error: object) -> UserError:
    """Return the error for a file that is damaged or of another model than its run's."""
    return UserError(f"{file} does not contain the model of this run: {error}")


def _check(run: RunDirectory) -> None:
    """Raise UserError if a run has no final model."""
    if not run.model_path.is_file():
        ended = bool(run.summary())
        why = "it was moved or removed" if ended else "the run has not saved a model yet"
        raise UserError(f"{run.model_path} is missing; {why}")
    if not has_model(run):
        raise UserError(
            f"{run.model_path} is of an earlier end of this run, which goes on or was killed; wait "
            "for its end, or resume it"
        )


def _check_best(run: RunDirectory, file: Path) -> None:
    """Raise UserError if a best model is damaged, or of rounds that were trained again."""
    read_metadata(file)
    best, rows = kept_best(run), {row["round"]: row["accuracy"] for row in run.rounds()}
    if best is None or rows.get(best.server_round) != best.accuracy:
        raise UserError(
            f"{file} is of rounds that this run has trained again without keep-best=true; train "
            "with it, or take the final model"
        )


def check_made_from(file: Path, run: RunDirectory, remedy: str) -> None:
    """Raise UserError, with what helps, if a file was not made from a run's final model."""
    if made_from(run).items() - read_metadata(file).items():
        raise UserError(f"{file} was made from an earlier model of this run; {remedy}")


def read_metadata(file: Path) -> dict[str, str]:
    """Return what a file of a model says about it; raises UserError if it is damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "np") as opened:
            return opened.metadata() or {}
    except SafetensorError as error:
        raise not_its_model(file, error) from None
