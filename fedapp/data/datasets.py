"""THE DATA SET TABLE: what can be trained on, and how each set becomes arrays of bytes.

Whatever the files look like, the rest of the code sees one form: uint8 images [n, H, W, channels],
int64 labels, and the mean and deviation to normalise by. scikit-learn's digits need no download, so
a first run works anywhere; image folders take a user's own data.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from fedapp.data.cache import Arrays, cache_folder, cached_arrays, exclusive, file_version
from fedapp.data.formats import CifarFormat, FileFormat, IdxFormat, locate
from fedapp.data.images import load_image_folder
from fedapp.data.sources import Images, Joined
from fedapp.errors import UserError


@dataclass(frozen=True)
class Dataset:
    """A data set in memory; arrays may be mapped from files, copy-on-write.

    Attributes:
        name: key in `DATASETS`.
        classes: class names, by label.
        mean: of each channel of the training images, on the scale 0..1.
        std: likewise.
        train_images: uint8 [n, H, W, channels].
        train_labels: int64 [n].
        test_images: uint8 [m, H, W, channels].
        test_labels: int64 [m].
    """

    name: str
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    train_images: Images = field(repr=False)
    train_labels: np.ndarray = field(repr=False)
    test_images: Images = field(repr=False)
    test_labels: np.ndarray = field(repr=False)

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

    def pooled(self) -> "Dataset":
        """Return the data set with all images, training images first, as both of its splits."""
        images = Joined(self.train_images, self.test_images)
        labels = np.concatenate([self.train_labels, self.test_labels])
        return replace(
            self, train_images=images, train_labels=labels, test_images=images, test_labels=labels
        )

    def symmetric(self) -> "Dataset":
        """Return the data set with images that are normalised to -1..1."""
        half = (0.5,) * self.channels
        return replace(self, mean=half, std=half)


@dataclass(frozen=True)
class DatasetInfo:
    """One row of the table.

    Attributes:
        num_classes: None where the files decide.
        image_size: side of the images in pixels, None where the files decide.
        source: where the data come from.
        layout: what must lie in data-dir.
        read: makes the arrays of a `Dataset` from data-dir and download.
    """

    num_classes: int | None
    image_size: int | None
    source: str
    layout: str
    read: Callable[[str, bool], Arrays]


def load_dataset(name: str, data_dir: str = "", download: bool = False) -> Dataset:
    """Load a data set, from the cache of decoded data where possible.

    Args:
        name: a key of `DATASETS`.
        data_dir: folder with the files; by default the one downloads go to.
        download: fetch public data sets that are not there.

    Raises:
        UserError: unknown name, files that are absent or damaged, or a failed download.
    """
    if name not in DATASETS:
        raise UserError(f"unknown dataset '{name}'; choose one of {', '.join(DATASETS)}")
    arrays = dict(DATASETS[name].read(data_dir, download))
    classes = tuple(str(item) for item in arrays.pop("classes"))
    mean = tuple(float(value) for value in arrays.pop("mean"))
    std = tuple(float(value) for value in arrays.pop("std"))
    return Dataset(name, classes, mean, std, **arrays)


def _read_digits(data_dir: str, download: bool) -> Arrays:
    """Read scikit-learn's digits; cached, because importing scikit-learn takes seconds."""
    from importlib.metadata import version

    return cached_arrays("digits", "scikit-learn", [version("scikit-learn")], _decode_digits)


def _decode_digits() -> Arrays:
    """Scale 0..16 to 0..255 and hold out a fifth of each class, the same one always."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = np.rint(digits.images * 255 / 16).astype(np.uint8)[..., None]
    labels = digits.target.astype(np.int64)
    rng = np.random.default_rng(0)
    is_test = np.zeros(len(labels), dtype=bool)
    for label in range(10):
        members = rng.permutation(np.flatnonzero(labels == label))
        is_test[members[: round(len(members) / 5)]] = True
    return {
        "classes": np.array([str(digit) for digit in range(10)]),
        "mean": np.array(DIGITS_MEAN),
        "std": np.array(DIGITS_STD),
        "train_images": images[~is_test],
        "train_labels": labels[~is_test],
        "test_images": images[is_test],
        "test_labels": labels[is_test],
    }


@dataclass(frozen=True)
class PublicFiles:
    """A public data set in its published files: where, in which format, and what is known of it."""

    name: str
    torchvision_class: str
    file_format: FileFormat
    image_shape: tuple[int, int, int]
    num_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: tuple[str, ...] = ()

    def read(self, data_dir: str, download: bool) -> Arrays:
        """Find, or download, and read the files."""
        root = Path(data_dir).expanduser().absolute() if data_dir else cache_folder() / "datasets"
        paths = locate(root, self.file_format)
        if not paths and download:
            self._download(root)
            paths = locate(root, self.file_format)
        if not paths:
            raise UserError(
                f"dataset '{self.name}' is not in {root / self.file_format.folder}; set data-dir "
                f"to the folder that holds {self.file_format.folder}, or set download=true"
            )
        versions = [file_version(name, path.stat()) for name, path in paths.items()]
        return cached_arrays(self.name, str(root), versions, lambda: self._decode(paths))

    def _download(self, root: Path) -> None:
        import torchvision.datasets

        with exclusive(root / f".{self.name}.lock"):
            if locate(root, self.file_format):
                return  # another process was faster
            try:
                getattr(torchvision.datasets, self.torchvision_class)(str(root), download=True)
            except Exception as error:  # network, disk and checksum errors of all kinds
                raise UserError(
                    f"could not download dataset '{self.name}' to {root}: {error}"
                ) from error

    def _decode(self, paths: dict[str, Path]) -> Arrays:
        arrays = {"classes": np.array(self.classes), **self.file_format.read(paths)}
        arrays |= {"mean": np.array(self.mean), "std": np.array(self.std)}
        folder = next(iter(paths.values())).parent
        for split in ("train", "test"):
            images, labels = arrays[f"{split}_images"], arrays[f"{split}_labels"]
            if images.shape[1:] != self.image_shape or not len(images):
                raise UserError(
                    f"the {split} images in {folder} have shape {list(images.shape)}, but those of "
                    f"'{self.name}' are [n, {', '.join(map(str, self.image_shape))}]"
                )
            if labels.min() < 0 or labels.max() >= self.num_classes:
                raise UserError(
                    f"the {split} labels in {folder} are not all in 0..{self.num_classes - 1}"
                )
        if len(arrays["classes"]) != self.num_classes:
            raise UserError(f"the files in {folder} do not name {self.num_classes} classes")
        return arrays


DIGITS_MEAN = (0.3055,)
DIGITS_STD = (0.3759,)

_CIFAR10 = PublicFiles(
    "cifar10",
    "CIFAR10",
    CifarFormat(
        "cifar-10-batches-py",
        tuple(f"data_batch_{part}" for part in range(1, 6)),
        "test_batch",
        "batches.meta",
        "labels",
        "label_names",
    ),
    (32, 32, 3),
    10,
    (0.4914, 0.4822, 0.4465),
    (0.2470, 0.2435, 0.2616),
)
_CIFAR100 = PublicFiles(
    "cifar100",
    "CIFAR100",
    CifarFormat("cifar-100-python", ("train",), "test", "meta", "fine_labels", "fine_label_names"),
    (32, 32, 3),
    100,
    (0.507, 0.487, 0.441),
    (0.267, 0.256, 0.276),
)
_MNIST = PublicFiles(
    "mnist",
    "MNIST",
    IdxFormat("MNIST/raw"),
    (28, 28, 1),
    10,
    (0.1307,),
    (0.3081,),
    tuple("0123456789"),
)
_FASHION_MNIST = PublicFiles(
    "fashion-mnist",
    "FashionMNIST",
    IdxFormat("FashionMNIST/raw"),
    (28, 28, 1),
    10,
    (0.2860,),
    (0.3530,),
    (
        "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
        "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
    ),
)  # fmt: skip


DATASETS: dict[str, DatasetInfo] = {
    "digits": DatasetInfo(
        10, 8, "scikit-learn (installed with fedapp): 1797 digits", "nothing", _read_digits
    ),
    "cifar10": DatasetInfo(
        10, 32, "Krizhevsky, 2009: 60 000 photos", "cifar-10-batches-py/", _CIFAR10.read
    ),
    "cifar100": DatasetInfo(
        100, 32, "Krizhevsky, 2009: 60 000 photos", "cifar-100-python/", _CIFAR100.read
    ),
    "mnist": DatasetInfo(10, 28, "LeCun et al., 1998: 70 000 digits", "MNIST/raw/", _MNIST.read),
    "fashion-mnist": DatasetInfo(
        10, 28, "Xiao et al., 2017: 70 000 articles", "FashionMNIST/raw/", _FASHION_MNIST.read
    ),
    "images": DatasetInfo(
        None,
        None,
        "your own images",
        "train/CLASS/*.jpg and test/CLASS/*.jpg (or .jpeg, .png)",
        lambda data_dir, download: load_image_folder(data_dir),
    ),
}
