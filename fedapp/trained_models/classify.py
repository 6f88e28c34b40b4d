"""Classify images with the final model of a run, or of one client; no data set is needed."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedapp.config.resolve import parse_config
from fedapp.config.run_config import RunConfig
from fedapp.core.errors import UserError
from fedapp.core.hardware import choose_device, set_float32_precision
from fedapp.core.paths import folder_name
from fedapp.core.rng import Stream, torch_seed
from fedapp.data.batches.in_memory import Normaliser, batch_bounds, mixed_order
from fedapp.data.datasets import find_dataset
from fedapp.data.image_format import ImageFormat
from fedapp.data.readers.encoded import EncodedImages
from fedapp.data.readers.images import read_images
from fedapp.data.readers.pixels import read_central_square, read_image
from fedapp.data.readers.sources import Images
from fedapp.methods.table import find_method
from fedapp.models.backbones import normalises_by_batch
from fedapp.models.model import Model
from fedapp.results.final_model import kept_best, read_image_format
from fedapp.results.run_directory import RunDirectory
from fedapp.results.which_model import BEST, FINAL
from fedapp.runtime.process.earlier_run import check_extension
from fedapp.runtime.process.global_model import build_global_model, check_global_model, load_weights
from fedapp.runtime.process.heterogeneous_models import load_personal_model

Given = np.ndarray | str | Path | Iterable[str | Path]

BATCH = 128
BATCH_NOTE = (
    "the BatchNorm of this model normalises over the images that are given together (bn='batch'), "
    "so that its answers depend on them: give many, of mixed classes, or train with bn='running' "
    "or bn='group'"
)


@dataclass(frozen=True)
class Guess:
    """The most probable class of one image, and its score: the softmax of the logits.

    Scores of one run can be compared. They are no probabilities: a head whose logits are cosines,
    such as SphereFed's, gives small scores even where it is right.
    """

    label: str
    score: float


@dataclass(frozen=True)
class TrainedModel:
    """The final global model of a run, or the personal one of a client, and what it takes.

    Attributes:
        model: maps images [B, channels, side, side], normalised, to features [B, d] and logits
            [B, C]; in evaluation mode.
        images: the form of the images, with the names of the classes.
        config: of the run.
        device: of the model.
    """

    model: Model
    images: ImageFormat
    config: RunConfig
    device: torch.device

    @classmethod
    def of(
        cls,
        run: RunDirectory,
        device: str = "cpu",
        which: str = FINAL,
        personal: Path | None = None,
    ) -> "TrainedModel":
        """Load the model of a run, or of one of its clients.

        Args:
            run: the run.
            device: auto, cpu, cuda or cuda:N.
            which: final, best (of keep-best) or calibrated (with the head of `fedapp calibrate`).
            personal: the file of a client's model, of `fedapp personalise`; None: the global model.

        Raises:
            UserError: the method has personal models and no file is named; or the run has not
                ended, saved no such model, or was trained with a file that is not named or has
                changed; or the file is not of a client's model of this run's method.
        """
        check_extension(run)
        if personal is None:
            check_global_model(str(run.config()["method"]))
        elif which != FINAL:
            raise UserError(f"a client's own model has no '{which}' one: leave out one of the two")
        config = parse_config({**run.config(), "device": device, "initial-model": "", "resume": ""})
        check_extension(run, config)
        chosen = choose_device(config.device)
        set_float32_precision(config.precision)
        if personal is not None:
            model, images = load_personal_model(config, personal, chosen)
        else:
            images = read_image_format(run)
            model = build_global_model(config, images, chosen)
            load_weights(model, run, which)
        return cls(model.eval(), images, config, chosen)

    @property
    def depends_on_batch(self) -> bool:
        """Whether an image's class depends on the images beside it: BatchNorm by the batch."""
        one = find_method(self.config.method).heterogeneous is None
        return one and normalises_by_batch(self.config.model, self.config.bn)

    def classify(self, images: Given) -> list[Guess]:
        """Return the class of each image.

        Args:
            images: uint8 [n, side, side, channels], or the paths of image files. A file of another
                size is made square as in the run's test; without a rule for that, its central
                square is scaled.

        Raises:
            UserError: an array of another form, a file that cannot be read, or a single image for a
                model that normalises over the batch.
        """
        given = images if isinstance(images, np.ndarray) else _paths(images)
        if isinstance(given, np.ndarray):
            self._check_form(given)
        found: dict[int, Guess] = {}
        for rows, inputs in self.batches(given):
            found.update(zip(rows.tolist(), self._guesses(inputs), strict=True))
        return [found[row] for row in range(len(given))]

    def batches(self, images: Images | list[Path]) -> Iterator[tuple[np.ndarray, Tensor]]:
        """Yield batches of images in the form that the model takes, or of the paths of files.

        Yields the positions [B] of a batch, and its images [B, channels, side, side] on the device,
        normalised. Where they are classified together, a batch is as large and as mixed as in the
        run's test.

        Raises:
            UserError: a file that cannot be read, or a single image as in `classify`.
        """
        if self.depends_on_batch and len(images) == 1:
            raise UserError(f"one image cannot be classified alone: {BATCH_NOTE}")
        form = self.images
        normalise = Normaliser(form.mean, form.std, form.side, self.device)
        size = int(self.config.test_batch_size) if self.depends_on_batch else BATCH
        seed = torch_seed(0, Stream.EVALUATION) if self.depends_on_batch else None
        order = mixed_order(len(images), seed).numpy()
        for start, stop in batch_bounds(len(images), size):
            rows = order[start:stop]
            pixels = self._read(images, rows) if isinstance(images, list) else images[rows]
            values = torch.from_numpy(np.ascontiguousarray(pixels))
            yield rows, normalise(values.to(self.device))

    def _check_form(self, pixels: np.ndarray) -> None:
        expected = (self.images.side, self.images.side, self.images.channels)
        if pixels.dtype != np.uint8 or pixels.shape[1:] != expected:
            raise UserError(
                f"images are {pixels.dtype} {list(pixels.shape)} but must be uint8 "
                f"[n, {', '.join(map(str, expected))}]"
            )

    @torch.no_grad()
    def _guesses(self, inputs: Tensor) -> list[Guess]:
        _, logits = self.model(inputs)
        shares, labels = logits.float().softmax(dim=1).max(dim=1)
        pairs = zip(labels.tolist(), shares.tolist(), strict=True)
        return [Guess(self.images.classes[label], share) for label, share in pairs]

    def _read(self, files: Sequence[Path], rows: np.ndarray) -> np.ndarray:
        """Return files as uint8 [n, side, side, channels]; raises UserError for a bad one."""
        side, info = self.images.side, find_dataset(self.config.dataset)
        if info.streams:
            return EncodedImages(Path(), [str(file) for file in files], side)[rows]
        chosen, channels = [files[row] for row in rows], self.images.channels
        if info.stretches:
            names = [str(file) for file in chosen]
            stretched = partial(read_image, side=side)
            return read_images(Path(), names, side, stretched)[0][..., :channels]
        mode = "L" if channels == 1 else "RGB"
        return np.stack([read_central_square(file, side, mode) for file in chosen])


def model_name(run: RunDirectory, which: str, personal: Path | None) -> tuple[str, str]:
    """Return the name of a run's or a client's model in those of files, and in words."""
    if personal is not None:
        return folder_name(personal.stem), f"the model in {personal.name}"
    best = kept_best(run) if which == BEST else None
    when = f" (round {best.server_round})" if best else ""
    return ("", "the global model") if which == FINAL else (which, f"the {which} model{when}")


def _paths(images: str | Path | Iterable[str | Path]) -> list[Path]:
    return [Path(each) for each in ([images] if isinstance(images, str | Path) else images)]
