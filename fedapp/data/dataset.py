"""A data set in memory, in the form that all readers give."""

import hashlib
from dataclasses import dataclass, field, replace

import numpy as np

from fedapp.data.image_format import ImageFormat
from fedapp.data.partition.client_folders import ClientFolders
from fedapp.data.readers.encoded import EncodedImages
from fedapp.data.readers.sources import Images, Joined


@dataclass(frozen=True)
class Dataset:
    """A data set in memory; arrays may be mapped from files, copy-on-write.

    Attributes:
        name: key in `DATASETS`.
        classes: class names, by label.
        mean: of each channel of the training images, on the scale 0..1.
        std: of each channel of the training images, on the scale 0..1.
        train_images: uint8 [n, H, W, channels].
        train_labels: int64 [n].
        test_images: uint8 [m, H, W, channels].
        test_labels: int64 [m].
        pools_test: whether pooling includes the test images.
        digest: a hash of the images; "" if they are decoded when they are used.
        folders: which images belong to which client from the start; None: all to all.
    """

    name: str
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    train_images: Images = field(repr=False)
    train_labels: np.ndarray = field(repr=False)
    test_images: Images = field(repr=False)
    test_labels: np.ndarray = field(repr=False)
    pools_test: bool = True
    digest: str = ""
    folders: ClientFolders | None = None

    @property
    def num_classes(self) -> int:
        """Number of classes C."""
        return len(self.classes)

    @property
    def channels(self) -> int:
        """Number of colour channels, 1 or 3."""
        return int(self.train_images.shape[3])

    @property
    def image_size(self) -> int:
        """Side of the square images in pixels."""
        return int(self.train_images.shape[1])

    @property
    def image_format(self) -> ImageFormat:
        """What a model that was trained on this data set takes and says."""
        return ImageFormat(self.classes, self.mean, self.std, self.image_size, self.channels)

    def classes_hash(self) -> str:
        """Return a hash of the class names in their order, which defines the labels."""
        return hashlib.sha256("\n".join(self.classes).encode()).hexdigest()[:16]

    def pooled(self) -> "Dataset":
        """Return the data set whose two splits both have all images, training images first."""
        if not self.pools_test:
            return self.tested_on_training_images()
        first, second = self.train_images, self.test_images
        images: Images = Joined(first, second)
        if isinstance(first, EncodedImages) and isinstance(second, EncodedImages):
            images = first.joined(second)
        labels = np.concatenate([self.train_labels, self.test_labels])
        return replace(
            self, train_images=images, train_labels=labels, test_images=images, test_labels=labels
        )

    def tested_on_training_images(self) -> "Dataset":
        """Return the data set without its test images; a partition keeps both parts apart."""
        return replace(self, test_images=self.train_images, test_labels=self.train_labels)

    def symmetric(self) -> "Dataset":
        """Return the data set with a mean and deviation that normalise images to -1..1."""
        half = (0.5,) * self.channels
        return replace(self, mean=half, std=half)
