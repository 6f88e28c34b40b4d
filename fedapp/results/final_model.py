"""The final model of a run: model.safetensors, if it is that of the run's last round.

Beside it may lie the same model with a calibrated head, calibrated.safetensors, and the statistics
with which it is calibrated, class_statistics.safetensors.
"""

import hashlib
from pathlib import Path

import numpy as np

from fedapp.core.errors import UserError
from fedapp.data.image_format import ImageFormat
from fedapp.results.run_directory import RunDirectory

_MADE_FROM = "sha256-of-model"  # in the metadata of files that were made from the model


def model_file(run: RunDirectory, calibrated: bool = False) -> Path:
    """Return where a run's final model is, or that with a calibrated head."""
    return run.path / "calibrated.safetensors" if calibrated else run.model_path


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


def read_model(run: RunDirectory, calibrated: bool = False) -> dict[str, np.ndarray]:
    """Return the tensors of a run's final model, or of that with a calibrated head, by name.

    Raises:
        UserError: the run has not ended, has saved no such model, or the file is damaged.
    """
    _check(run)
    file = model_file(run, calibrated)
    if calibrated:
        remedy = f"`fedapp calibrate {run.path}`"
        if not file.is_file():
            raise UserError(f"{file} is missing; {remedy} makes it")
        check_made_from(file, run, f"repeat {remedy}")
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
