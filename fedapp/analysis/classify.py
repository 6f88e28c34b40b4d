"""Classify images with the final global model of a run; the run's data set is not needed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedapp.analysis.personalise import check_global_model, load_weights
from fedapp.config.resolve import parse_config
from fedapp.config.run_config import RunConfig
from fedapp.core.errors import UserError
from fedapp.core.hardware import choose_device
from fedapp.data.batches.in_memory import Normaliser
from fedapp.data.datasets import find_dataset
from fedapp.data.image_format import ImageFormat
from fedapp.data.readers.encoded import EncodedImages
from fedapp.data.readers.images import open_image, to_bytes
from fedapp.models.backbones import BACKBONES
from fedapp.models.model import Model
from fedapp.results.final_model import read_image_format
from fedapp.results.run_directory import RunDirectory
from fedapp.runtime.global_model import build_global_model
from fedapp.runtime.used_files import check_extension

BATCH = 500

BATCH_NOTE = (
    "the BatchNorm of this model normalises over the images that are given together (bn='batch'), "
    "so that its answers depend on them: give many, of mixed classes, or train with bn='running' "
    "or bn='group'"
)


@dataclass(frozen=True)
class Guess:
    """The most probable class of one image, and its probability: the softmax of the logits."""

    label: str
    probability: float


@dataclass(frozen=True)
class TrainedModel:
    """The final global model of a run, and what it takes.

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
    def of(cls, run: RunDirectory, device: str = "cpu") -> "TrainedModel":
        """Load the model of a run; `device` is auto, cpu, cuda or cuda:N.

        Raises:
            UserError: the clients of this method have personal models, or the run has not ended,
                saved no model, or needs a file that is not named.
        """
        check_extension(run)
        check_global_model(str(run.config()["method"]))
        config = parse_config({**run.config(), "device": device, "initial-model": "", "resume": ""})
        place, images = choose_device(config.device), read_image_format(run)
        model = build_global_model(config, images, place)
        load_weights(model, run)
        return cls(model.eval(), images, config, place)

    @property
    def depends_on_batch(self) -> bool:
        """Whether an image's class depends on the images beside it: BatchNorm by the batch."""
        return self.config.bn == "batch" and BACKBONES[self.config.model].has_batch_norm

    def classify(self, images: np.ndarray | Sequence[str | Path]) -> list[Guess]:
        """Return the class of each image.

        Args:
            images: uint8 [n, side, side, channels], or the paths of image files; of a file of
                another size the central square is scaled.

        Raises:
            UserError: an array of another form, a file that cannot be read, or a single image for a
                model that normalises over the batch.
        """
        if self.depends_on_batch and len(images) < 2:
            raise UserError(f"one image cannot be classified alone: {BATCH_NOTE}")
        return [guess for batch in self._batches(images) for guess in self._guesses(batch)]

    def _batches(self, images: np.ndarray | Sequence[str | Path]) -> Iterator[Tensor]:
        size = len(images) if self.depends_on_batch else BATCH
        for start in range(0, len(images), size):
            part = images[start : start + size]
            pixels = part if isinstance(part, np.ndarray) else self._read([Path(p) for p in part])
            expected = (self.images.side, self.images.side, self.images.channels)
            if pixels.dtype != np.uint8 or pixels.shape[1:] != expected:
                raise UserError(
                    f"images are {pixels.dtype} {list(pixels.shape)} but must be uint8 "
                    f"[n, {', '.join(map(str, expected))}]"
                )
            yield torch.from_numpy(np.ascontiguousarray(pixels))

    @torch.no_grad()
    def _guesses(self, pixels: Tensor) -> list[Guess]:
        form = self.images
        normalise = Normaliser(form.mean, form.std, form.side, self.device)
        _, logits = self.model(normalise(pixels.to(self.device)))
        shares, labels = logits.float().softmax(dim=1).max(dim=1)
        pairs = zip(labels.tolist(), shares.tolist(), strict=True)
        return [Guess(form.classes[label], share) for label, share in pairs]

    def _read(self, files: Sequence[Path]) -> np.ndarray:
        """Return files as uint8 [n, side, side, channels]; raises UserError for a bad one."""
        if find_dataset(self.config.dataset).streams:  # scaled and cropped as in its tests
            stored = EncodedImages(Path(), [str(file) for file in files], self.images.side)
            return stored[np.arange(len(files))]
        return np.stack([self._read_one(file) for file in files])

    def _read_one(self, file: Path) -> np.ndarray:
        from PIL import ImageOps

        side, mode = self.images.side, "L" if self.images.channels == 1 else "RGB"
        with open_image(file) as image:
            to_bytes(f"image {file}", image)  # raises for more than 8 bits
            plain = image.convert(mode)
            square = plain if plain.size == (side, side) else ImageOps.fit(plain, (side, side))
        array = np.asarray(square)
        return array[..., None] if array.ndim == 2 else array
