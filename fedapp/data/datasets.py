"""THE DATA SET TABLE: the data sets, and the functions that read each into arrays of bytes.

All data sets have the same form: uint8 images [n, H, W, channels], int64 labels, and the mean and
standard deviation for normalisation. scikit-learn's digits need no download, so a first run works
anywhere. Image folders are for a user's own data.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedapp.core.arrays import Arrays
from fedapp.core.errors import OWN, UserError, unknown
from fedapp.data.array_checks import check_arrays, check_statistics
from fedapp.data.dataset import Dataset
from fedapp.data.partition.client_folders import ClientFolders
from fedapp.data.readers.cache import with_digest
from fedapp.data.readers.client_folders import load_client_folders
from fedapp.data.readers.digits import read_digits
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
from fedapp.data.readers.sources import Origin


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
        computes_statistics: whether mean and deviation are those of these training images, not
            published numbers.
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
    computes_statistics: bool = True
    train_images: int = 0
    test_images: int = 0

    @property
    def pooled_images(self) -> int:
        """Number of images of the pooled data set, 0 if the files determine it."""
        return self.train_images + (self.test_images if self.pools_test else 0)


def row_name(name: str) -> str:
    """Return the key in `DATASETS` of a data set; all names of the hub have the same key."""
    return HUB if name.startswith(PREFIX) else name


def settings_name(dataset: str) -> str:
    """Return the name of a data set in the settings; a hub data set has its name's last part.

    hub:uoft-cs/cifar10 is cifar10, and hub:zalando-datasets/fashion_mnist is fashion-mnist.
    """
    return dataset.partition("/")[2].partition(":")[0].replace("_", "-") or dataset


def find_dataset(name: str) -> DatasetInfo:
    """Return the row of a data set; raises UserError for an unknown name."""
    if row_name(name) not in DATASETS:
        raise unknown("dataset", name, DATASETS, OWN)
    return DATASETS[row_name(name)]


def computes_statistics(name: str) -> bool:
    """Return whether a data set is normalised by numbers of its own images; of unknown ones too."""
    info = DATASETS.get(row_name(name))
    return info is None or info.computes_statistics


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
        arrays = with_digest(dict(info.read(origin)))
    except OSError as error:
        location = f"data-dir {data_dir}" if data_dir else "the cache folder"
        raise UserError(
            f"cannot read dataset '{name}' in {location}: {error}; "
            "set data-dir to a folder that this user may read"
        ) from error
    names = tuple(str(item) for item in arrays.pop("classes"))
    _check_encoding(f"a class of dataset '{name}'", names)
    folders = ClientFolders.taken_from(arrays)
    _check_encoding(f"a client in data-dir {data_dir}", folders.names if folders else ())
    mean = tuple(float(value) for value in arrays.pop("mean"))
    std = tuple(float(value) for value in arrays.pop("std"))
    digest = str(arrays.pop("digest", ""))
    check_arrays(name, arrays, len(names))
    check_statistics(name, mean, std)
    known = DATASETS.get(settings_name(name), info)  # a copy on the hub is pooled as the original
    return Dataset(
        name, names, mean, std, **arrays, pools_test=known.pools_test, digest=digest,
        folders=folders,
    )  # fmt: skip


def incomplete(data: Dataset, pooled: bool) -> str:
    """Return in words how many training images a copy of a known size lacks; "" if none."""
    info, found = DATASETS.get(data.name), len(data.train_images)
    expected = 0 if info is None else info.pooled_images if pooled else info.train_images
    if found >= expected:
        return ""
    return f"'{data.name}' has {expected:,} images to divide, but this copy has {found:,}"


def _check_encoding(what: str, names: Sequence[str]) -> None:
    """Raise UserError for a name that cannot be encoded as UTF-8."""
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise UserError(
                f"{what} is called '{name}', which is not UTF-8; rename its folder"
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
    """Read a folder that is divided among clients, one of each client, or one host's own part."""
    if origin.clients:
        return load_client_folders(origin)
    if not origin.classes:
        return load_image_folder(origin)
    return load_named_images(origin.data_dir, class_names(origin.classes), origin.image_size)


def _public(files: PublicFiles, source: str, layout: str, **more: Any) -> DatasetInfo:
    """Return the row of a data set in its published files."""
    side = files.image_shape[0]
    return DatasetInfo(
        files.num_classes, side, source, layout, files.read, computes_statistics=not files.mean,
        **more,
    )  # fmt: skip


HUB = f"{PREFIX}OWNER/NAME"
DATASETS: dict[str, DatasetInfo] = {
    "digits": DatasetInfo(
        10, 8, "scikit-learn (installed with fedapp)", "nothing", read_digits,
        train_images=1_438, test_images=359, bundled=True, computes_statistics=False,
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
        LAYOUT, read_imagenet100, lists_classes=True, streams=True, computes_statistics=False,
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
