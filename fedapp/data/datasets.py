"""THE DATA SET TABLE: the data sets, and the functions that read each into arrays of bytes.

All data sets have the same form: uint8 images [n, H, W, channels], int64 labels, and the mean and
standard deviation for normalisation. scikit-learn's digits need no download, so a first run works
anywhere. Image folders are for a user's own data.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedapp.core.arrays import Arrays
from fedapp.core.errors import OWN, UserError, unknown
from fedapp.data.image_format import ImageFormat
from fedapp.data.readers.digits import read_digits
from fedapp.data.readers.encoded import EncodedImages
from fedapp.data.readers.hub import PREFIX, read_hub
from fedapp.data.readers.imagenet import LAYOUT, read_imagenet100
from fedapp.data.readers.images import IMAGE_FOLDERS, load_image_folder
from fedapp.data.readers.own_images import class_names, load_named_images
from fedapp.data.readers.public import (
    CIFAR10,
    CIFAR100,
    CINIC10,
    FASHION_MNIST,
    FLOWERS102,
    MNIST,
    TINY_IMAGENET,
    PublicFiles,
)
from fedapp.data.readers.sources import Images, Joined, Origin


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
            return replace(self, test_images=self.train_images, test_labels=self.train_labels)
        first, second = self.train_images, self.test_images
        images: Images = Joined(first, second)
        if isinstance(first, EncodedImages) and isinstance(second, EncodedImages):
            images = first.joined(second)
        labels = np.concatenate([self.train_labels, self.test_labels])
        return replace(
            self, train_images=images, train_labels=labels, test_images=images, test_labels=labels
        )

    def symmetric(self) -> "Dataset":
        """Return the data set with a mean and deviation that normalise images to -1..1."""
        half = (0.5,) * self.channels
        return replace(self, mean=half, std=half)


@dataclass(frozen=True)
class DatasetInfo:
    """One row of the table.

    Attributes:
        num_classes: None if the files determine it.
        image_size: side of the images in pixels, None if the files determine it.
        source: where the data come from.
        layout: the files that data-dir must contain.
        read: reads the parts of a `Dataset` from the user's copy.
        pools_test: whether pooling includes the test images; FedDOR and its baselines divide only
            the training images of Tiny-ImageNet.
        lists_classes: whether a class list selects some of its classes.
        streams: whether images are decoded when they are used.
        bundled: whether a dependency brings the images, so that no file is read or downloaded.
        takes_photos: whether `read` scales images and holds test images out, as `Origin` asks.
        stretches: whether images of all shapes are scaled to squares, without keeping their ratio.
        train_images: number of training images, 0 if the files determine it.
        test_images: number of test images, 0 if the files determine it.
    """

    num_classes: int | None
    image_size: int | None
    source: str
    layout: str
    read: Callable[[Origin], Mapping[str, Any]]
    pools_test: bool = True
    lists_classes: bool = False
    streams: bool = False
    bundled: bool = False
    takes_photos: bool = False
    stretches: bool = False
    train_images: int = 0
    test_images: int = 0

    @property
    def pooled_images(self) -> int:
        """Number of images of the pooled data set, 0 if the files determine it."""
        return self.train_images + (self.test_images if self.pools_test else 0)


def row_name(name: str) -> str:
    """Return the key in `DATASETS` of a data set; all names of the hub have the same key."""
    return HUB if name.startswith(PREFIX) else name


def find_dataset(name: str) -> DatasetInfo:
    """Return the row of a data set; raises UserError for an unknown name."""
    if row_name(name) not in DATASETS:
        raise unknown("dataset", name, DATASETS, OWN)
    return DATASETS[row_name(name)]


def load_dataset(name: str, data_dir: str = "", download: bool = False, **options: Any) -> Dataset:
    """Load a data set, from the cache of decoded data where possible.

    Args:
        name: a key of `DATASETS`.
        data_dir: folder with the files; "": the folder for downloads.
        download: fetch a missing public data set.
        options: further fields of `Origin`.

    Raises:
        UserError: unknown name, absent, damaged or unreadable files, a failed download, or an
            option that this data set does not have.
    """
    info, origin = find_dataset(name), Origin(name, data_dir, download, **options)
    check_photo_keys(name, origin.image_size, origin.test_share)
    try:
        arrays = dict(info.read(origin))
    except OSError as error:
        location = f"data-dir {data_dir}" if data_dir else "the cache folder"
        raise UserError(
            f"cannot read dataset '{name}' in {location}: {error}; "
            "set data-dir to a folder that this user may read"
        ) from error
    names = tuple(str(item) for item in arrays.pop("classes"))
    _check_encoding(name, names)
    mean = tuple(float(value) for value in arrays.pop("mean"))
    std = tuple(float(value) for value in arrays.pop("std"))
    return Dataset(name, names, mean, std, **arrays, pools_test=info.pools_test)


def _check_encoding(dataset: str, classes: Sequence[str]) -> None:
    """Raise UserError for a class name that cannot be encoded as UTF-8."""
    for name in classes:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise UserError(
                f"a class of dataset '{dataset}' is called '{name}', which is not UTF-8; "
                "rename its folder"
            ) from None


def check_photo_keys(dataset: str, image_size: int, test_share: float) -> None:
    """Raise UserError if a data set does not scale its images or hold some out, as asked."""
    if find_dataset(dataset).takes_photos:
        return
    for key, value, fact in (
        ("image-size", image_size, "has images of one size"),
        ("test-share", test_share, "has test images of its own"),
    ):
        if value:
            raise UserError(
                f"run-config key '{key}' is {value:g}, but dataset '{dataset}' {fact}; set it to 0"
            )


def _read_images(origin: Origin) -> Arrays:
    """Read one folder that is divided among clients, or one host's own part of the data."""
    if not origin.classes:
        return load_image_folder(origin)
    return load_named_images(origin.data_dir, class_names(origin.classes), origin.image_size)


def _public(files: PublicFiles, source: str, layout: str, **more: Any) -> DatasetInfo:
    """Return the row of a data set in its published files."""
    side = files.image_shape[0]
    return DatasetInfo(files.num_classes, side, source, layout, files.read, **more)


HUB = f"{PREFIX}OWNER/NAME"
DATASETS: dict[str, DatasetInfo] = {
    "digits": DatasetInfo(
        10, 8, "scikit-learn (installed with fedapp)", "nothing", read_digits,
        train_images=1_438, test_images=359, bundled=True,
    ),
    "cifar10": _public(
        CIFAR10, "Krizhevsky, 2009: photos", "cifar-10-batches-py/",
        train_images=50_000, test_images=10_000,
    ),
    "cifar100": _public(
        CIFAR100, "Krizhevsky, 2009: photos", "cifar-100-python/",
        train_images=50_000, test_images=10_000,
    ),
    "mnist": _public(
        MNIST, "LeCun et al., 1998: digits", "MNIST/raw/",
        train_images=60_000, test_images=10_000,
    ),
    "fashion-mnist": _public(
        FASHION_MNIST, "Xiao et al., 2017: articles", "FashionMNIST/raw/",
        train_images=60_000, test_images=10_000,
    ),
    "cinic10": _public(
        CINIC10, "Darlow et al., 2018: photos",
        "CINIC-10/train/CLASS/*.png and test/CLASS/*.png",
        train_images=90_000, test_images=90_000,
    ),
    "tiny-imagenet": _public(
        TINY_IMAGENET, "Stanford CS231n, 2015: photos, tested on those for validation",
        "tiny-imagenet-200/: wnids.txt, train/WNID/images/*.JPEG, val/images/*.JPEG, "
        "val/val_annotations.txt", pools_test=False,
        train_images=100_000, test_images=10_000,
    ),
    "imagenet100": DatasetInfo(
        100, 224, "100 classes of ImageNet (Deng et al., 2009), decoded while training",
        LAYOUT, read_imagenet100, lists_classes=True, streams=True,
    ),
    "flowers102": _public(
        FLOWERS102, "Nilsback and Zisserman, 2008: photos, scaled to 64x64",
        "flowers-102/: jpg/*.jpg, imagelabels.mat, setid.mat", stretches=True,
        train_images=2_040, test_images=6_149,
    ),
    HUB: DatasetInfo(
        None, None, "any images on the Hugging Face hub, or a copy of its files",
        "*.parquet and README.md as on the hub (needs pip install -e '.[hub]')", read_hub,
        takes_photos=True,
    ),
    "images": DatasetInfo(
        None,
        None,
        "your own images",
        IMAGE_FOLDERS,
        _read_images,
        takes_photos=True,
    ),
}  # fmt: skip
