"""Labelled images on which a run was not trained, for a test of its model.

Classes are matched by name: a label is the position in the model's list, whatever it is in the data
set. Some of the classes are enough; an image of a class that the model does not know is refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedapp.core.errors import UserError
from fedapp.core.paths import absolute, folder_name
from fedapp.data.dataset import Dataset
from fedapp.data.datasets import find_dataset, load_dataset
from fedapp.data.image_format import ImageFormat
from fedapp.data.readers.own_images import files_of_split
from fedapp.data.readers.sources import Images
from fedapp.trained_models.classify import TrainedModel

FOLDERS = "images"  # the data set that is read from class folders
LAYOUT = "test/CLASS/*.jpg or CLASS/*.jpg (or .png, .webp, .bmp, .tif)"


@dataclass(frozen=True)
class LabelledImages:
    """Images, or the paths of files, with labels [n] of the model, and a name for files.

    `folder` is where they were read; empty for a public data set.
    """

    images: Images | list[Path]
    labels: np.ndarray
    name: str
    folder: str = ""


def other_images(
    trained: TrainedModel, dataset: str, data_dir: str, download: bool
) -> LabelledImages:
    """Return the images of class folders, or the test images of another data set.

    Args:
        trained: the model that is tested.
        dataset: its name; "images": class folders, whose images are scaled as in `classify`.
        data_dir: the folder with them, as for a run.
        download: whether a missing public data set may be fetched.

    Raises:
        UserError: there are no such images, they are not in the form that the model takes, or a
            class is not one of the model's.
    """
    if dataset == FOLDERS:
        return _in_folders(data_dir, trained.images.classes)
    info, config, form = find_dataset(dataset), trained.config, trained.images
    options = {"class_list": config.class_list} if info.lists_classes else {}
    size = {"image_size": form.side} if info.takes_photos else {}
    data = load_dataset(dataset, data_dir, download, **options, **size)
    _check_form(data, form)
    labels = _labels(data, form.classes)
    return LabelledImages(data.test_images, labels, folder_name(dataset))


def _in_folders(data_dir: str, classes: Sequence[str]) -> LabelledImages:
    """List the images of DIR/test/CLASS, or of DIR/CLASS where there is no DIR/test."""
    if not data_dir:
        raise UserError(f"dataset '{FOLDERS}' needs data-dir: a folder with {LAYOUT}")
    root = absolute(data_dir, "data-dir").resolve()
    if not root.is_dir():
        raise UserError(f"data-dir {root} does not exist; it must have {LAYOUT}")
    folder = root / "test" if (root / "test").is_dir() else root
    files = files_of_split(folder.parent, folder.name, classes)
    if not files.names:
        raise UserError(f"no images in data-dir {root}; it must be laid out as {LAYOUT}")
    paths = [folder.parent / name for name in files.names]
    name = folder_name(f"{FOLDERS}-{root.name}")
    return LabelledImages(paths, files.labels, name, str(root))


def _check_form(data: Dataset, form: ImageFormat) -> None:
    """Raise UserError if a data set has no test images, or not in the form that a model takes."""
    if not len(data.test_labels):
        raise UserError(f"dataset '{data.name}' has no test images")
    if (data.image_size, data.channels) != (form.side, form.channels):
        raise UserError(
            f"the images of dataset '{data.name}' are {_size(data.image_size, data.channels)}, but "
            f"the model takes {_size(form.side, form.channels)}; dataset '{FOLDERS}', with class "
            "folders, scales them"
        )


def _size(side: int, channels: int) -> str:
    return f"{side}x{side} with {channels} channel{'s' if channels > 1 else ''}"


def _labels(data: Dataset, classes: Sequence[str]) -> np.ndarray:
    """Return the labels [n] of a data set's test images as positions in `classes`, by name."""
    known = {name: label for label, name in enumerate(classes)}
    present = [data.classes[label] for label in np.unique(data.test_labels)]
    if unknown := [name for name in present if name not in known]:
        raise UserError(
            f"class '{unknown[0]}' of dataset '{data.name}' is none of the model's classes "
            f"({', '.join(classes)}): only images of these can be tested"
        )
    positions = np.array([known.get(name, -1) for name in data.classes], dtype=np.int64)
    return positions[np.asarray(data.test_labels)]
