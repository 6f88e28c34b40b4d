"""The final model of a run: model.safetensors, if it is that of the run's last round."""

import numpy as np

from fedapp.core.errors import UserError
from fedapp.data.image_format import ImageFormat
from fedapp.results.run_directory import RunDirectory


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
    from safetensors import SafetensorError, safe_open

    _check(run)
    try:
        with safe_open(run.model_path, "np") as file:
            return ImageFormat.of_metadata(file.metadata() or {}, run.model_path)
    except SafetensorError as error:
        raise not_its_model(run, error) from None


def read_model(run: RunDirectory) -> dict[str, np.ndarray]:
    """Return the tensors of a run's final model, by name.

    Raises:
        UserError: the run has not ended, has saved no model, or the file is damaged.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    _check(run)
    try:
        return dict(load_file(run.model_path))
    except SafetensorError as error:
        raise not_its_model(run, error) from None


def _check(run: RunDirectory) -> None:
    """Raise UserError if a run has no final model."""
    if not run.model_path.is_file():
        raise UserError(f"{run.model_path} is missing; the run has not saved a model yet")
    if not has_model(run):
        raise UserError(
            f"{run.model_path} is of an earlier end of this run, which goes on or was killed; wait "
            "for its end, or resume it"
        )


def not_its_model(run: RunDirectory, error: object) -> UserError:
    """Return the error for a file that is damaged or of another model."""
    return UserError(f"{run.model_path} does not contain the model of this run: {error}")
