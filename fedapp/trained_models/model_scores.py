"""`fedapp test`: how well a model of a finished run does, class by class.

On the run's own test images the batches are those of the run's tests, so accuracy and loss are the
run's final ones. Other labelled images are batched and scaled as those that the model classifies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np
import torch

from clients.training.evaluation import Score, joined, predict
from clients.training.local_training import Batches
from fedapp.analysis.formulas.confusion import confusion_matrix, largest_confusions, rates
from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError
from fedapp.core.files import json_text, parse_object, write_atomically
from fedapp.core.progress import tracked
from fedapp.results.folders import check_writable, writing
from fedapp.results.formatting import percent
from fedapp.results.plots.client_plots import confusion
from fedapp.results.plots.rendering import png
from fedapp.results.run_directory import RunDirectory
from fedapp.results.which_model import FINAL
from fedapp.runtime.process.earlier_run import reopened
from fedapp.trained_models.classify import TrainedModel, model_name
from fedapp.trained_models.finished_run import run_values
from fedapp.trained_models.other_images import FOLDERS, LabelledImages, other_images
from strategies.threads import threads

CHANGEABLE = ("data-dir", "download", "device")
WORST, MOST_CLASSES = 5, 20  # of more classes only the worst are named
CONFUSIONS = 3


@dataclass(frozen=True)
class ClassScores:
    """The rates of one class, in 0..1."""

    name: str
    images: int
    precision: float | None  # None if no image is taken for the class
    recall: float | None  # its accuracy; None without images
    f1: float | None  # None without images


@dataclass(frozen=True)
class Confusion:
    """A class that is often taken for another."""

    name: str
    taken_for: str
    images: int  # that are taken for the other class
    of: int  # all images of the class

    def __str__(self) -> str:
        """Return "cat taken for dog: 31 of 100"."""
        return f"{self.name} taken for {self.taken_for}: {self.images} of {self.of}"


@dataclass(frozen=True, eq=False)
class ModelScores:
    """What a test of a model found.

    Attributes:
        model: which model was tested, in words.
        tested_on: the images, in words.
        images: their number.
        accuracy: the share of correct predictions, in 0..1 as all rates.
        balanced_accuracy: the mean recall over the classes with images.
        macro_f1: the mean F1 over the classes with images.
        loss: the mean cross-entropy of the logits (log loss).
        classes: the rates of each class, by label.
        confusions: the largest, in descending order.
        confusion: int64 [C, C]: images of class i (row) that are taken for class j (column).
        depends_on_batch: whether predictions depend on the other images (BatchNorm by the batch).
        file: the JSON file with these numbers.
        figure: the PNG file of the confusion matrix.
    """

    model: str
    tested_on: str
    images: int
    accuracy: float
    balanced_accuracy: float
    macro_f1: float
    loss: float
    classes: tuple[ClassScores, ...] = field(repr=False)
    confusions: tuple[Confusion, ...] = field(repr=False)
    confusion: np.ndarray = field(repr=False)
    depends_on_batch: bool
    file: Path
    figure: Path

    def as_dict(self) -> dict[str, Any]:
        """Return what the file contains."""
        kept = [each.name for each in fields(self) if each.name not in ("file", "figure")]
        values = {name: getattr(self, name) for name in kept}
        values |= {name: list(map(asdict, values[name])) for name in ("classes", "confusions")}
        return values

    def worst(self) -> Sequence[ClassScores]:
        """Return all classes if they are few, otherwise those with images and the lowest F1."""
        if len(self.classes) <= MOST_CLASSES:
            return self.classes
        present = [each for each in self.classes if each.f1 is not None]
        return sorted(present, key=lambda each: each.f1 or 0.0)[:WORST]


@dataclass(frozen=True)
class _Images:
    """Batches of images with their labels, their description, and the end of files' names."""

    batches: Batches
    words: str
    ending: str


def score_model(
    path: Path,
    dataset: str = "",
    overrides: Mapping[str, Any] | None = None,
    which: str = FINAL,
    personal: Path | None = None,
) -> ModelScores:
    """Test the final model of a run, and write the scores and the confusion matrix into the run.

    Args:
        path: the run directory.
        dataset: whose test images to take: "images" for class folders in data-dir. Empty, or the
            name of the run's public data set: the run's test images. With validation-share: empty
            are the run's validation images, and the name the published test images.
        overrides: data-dir, download and device.
        which: final, best (of keep-best) or calibrated (with the head of `fedapp calibrate`).
        personal: the file of a client's model, of `fedapp personalise`, to test instead.

    Raises:
        UserError: the run has no such model, the images are not there, not in the form that the
            model takes, or of a class that it does not know, or the run cannot be written.
    """
    run, changes = RunDirectory.load(path), dict(overrides or {})
    check_writable(run.path, "run directory")
    values = run_values(run, changes, CHANGEABLE)
    trained = TrainedModel.of(run, str(values["device"]), which, personal)
    name, words = model_name(run, which, personal)
    published = trained.config.validation_share > 0 and bool(dataset)
    own = dataset in ("", trained.config.dataset) and dataset != FOLDERS and not published
    images = _own(run, trained, values, changes) if own else _other(trained, dataset, changes)
    with threads(trained.config.threads):
        score, matrix = _tested(trained, images.batches)
    ending = "".join(f"-{part}" for part in (name, images.ending) if part)
    if images.ending:
        ending = _free_ending(run, ending, images.words)
    scores = _scores(run, trained, (words, images.words, ending), score, matrix)
    title = f"{trained.config.method} on {dataset or trained.config.dataset}"
    _write(run, scores, trained.images.classes, title)
    return scores


def _own(
    run: RunDirectory,
    trained: TrainedModel,
    values: Mapping[str, Any],
    changes: Mapping[str, Any],
) -> _Images:
    """Return the batches of the run's tests; raises UserError if the images are not the run's."""
    try:
        data = reopened(run, parse_config(values)).data
    except UserError as error:
        if "data-dir" not in changes:
            raise
        raise UserError(f"{error}; to test other images, name their dataset ('images')") from None
    if data.dataset.classes != trained.images.classes:
        raise UserError(f"the model tells other classes apart than run '{run.name}'")
    if not len(data.test_labels()):
        raise UserError(f"run '{run.name}' has no test images")
    what = "validation" if trained.config.validation_share else "test"
    return _Images(data.test_batches(), f"the run's {what} images ({data.dataset.name})", "")


def _other(trained: TrainedModel, dataset: str, changes: Mapping[str, Any]) -> _Images:
    """Return batches of other images, with a bar of progress."""
    folder = str(changes.get("data-dir", ""))
    found = other_images(trained, dataset, folder, bool(changes.get("download")))
    place = f" in {found.folder}" if found.folder else ""
    return _Images(_batches(trained, found), f"images of {dataset}{place}", found.name)


def _free_ending(run: RunDirectory, ending: str, tested_on: str) -> str:
    """Return the ending, with a number if another folder of the same last name has its files."""

    def is_free(file: Path) -> bool:
        earlier = parse_object(file.read_bytes()) or {} if file.exists() else None
        return earlier is None or earlier.get("tested_on") == tested_on

    endings = chain([ending], (f"{ending}-{number}" for number in count(2)))
    return next(each for each in endings if is_free(run.path / f"test{each}.json"))


def _batches(trained: TrainedModel, found: LabelledImages) -> Batches:
    for rows, inputs in tracked(trained.batches(found.images), "testing images"):
        yield inputs, torch.from_numpy(found.labels[rows]).to(trained.device)


def _tested(trained: TrainedModel, batches: Batches) -> tuple[Score, np.ndarray]:
    """Return loss and accuracy as a run's tests compute them, and the confusion matrix."""
    score, predicted = Score(), []
    for _, logits, targets in predict(trained.model, batches):
        score.add(logits, targets)
        predicted.append(logits.argmax(1))
    labels, _ = score.labels_and_hits()
    return score, confusion_matrix(labels, joined(predicted).numpy(), len(trained.images.classes))


def _scores(
    run: RunDirectory,
    trained: TrainedModel,
    words: tuple[str, str, str],
    score: Score,
    matrix: np.ndarray,
) -> ModelScores:
    """Return the scores of a test; `words` are the model, the images and the end of the files."""
    found, names, images = rates(matrix), trained.images.classes, matrix.sum(axis=1).tolist()
    columns = (map(_known, column) for column in found)
    classes = tuple(map(ClassScores, names, images, *columns))
    confusions = tuple(
        Confusion(names[label], names[other], int(matrix[label, other]), images[label])
        for label, other in largest_confusions(matrix, CONFUSIONS)
    )
    return ModelScores(
        words[0], words[1], score.count, score.accuracy, found.balanced_accuracy, found.macro_f1,
        score.loss, classes, confusions, matrix, trained.depends_on_batch,
        run.path / f"test{words[2]}.json", run.path / f"confusion{words[2]}.png",
    )  # fmt: skip


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _write(run: RunDirectory, scores: ModelScores, classes: Sequence[str], title: str) -> None:
    """Write the scores and the figure of the confusion matrix into the run directory."""
    right = f"{percent(scores.accuracy)} of {scores.images:,} images"
    figure = png(confusion(scores.confusion, classes, f"{title}: {right}"))
    with writing(run.path):
        write_atomically(scores.file, json_text(scores.as_dict(), 2).encode())
        write_atomically(scores.figure, figure)
