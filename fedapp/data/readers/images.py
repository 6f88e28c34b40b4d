"""Image folders of users' own data: train/CLASS/*.jpg and test/CLASS/*.jpg.

The images are decoded once into one uint8 array. Errors that would otherwise appear during training
(a damaged file, a different size, a class missing from the test set) are found and reported here.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import psutil

from fedapp.core.arrays import Arrays
from fedapp.core.errors import UserError
from fedapp.core.paths import absolute
from fedapp.core.progress import tracked
from fedapp.data.readers.cache import cached_arrays, file_version

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".tif", ".tiff")
IMAGE_FOLDERS = "train/CLASS/*.jpg and test/CLASS/*.jpg (or .png, .webp, .bmp, .tif)"
_OTHER_IMAGES = (
    ".gif", ".heic", ".heif", ".avif", ".jp2", ".j2k", ".ppm", ".pgm", ".pnm", ".pbm", ".tga",
    ".dng", ".nef", ".cr2",
)  # fmt: skip
SPLITS = ("train", "test")
_STATISTICS_CHUNK = 1000


@dataclass(frozen=True)
class ImageFiles:
    """The images of some class folders: their names, relative to the root, and labels int64 [n]."""

    names: list[str]
    labels: np.ndarray


def load_image_folder(data_dir: str) -> Arrays:
    """Return classes, mean, std and the images and labels of both splits of an image folder.

    Images are RGB, or have one channel when all of them are greyscale. Mean and standard deviation
    are those of the training images.

    Raises:
        UserError: the layout is wrong, or a file cannot be read or differs in size.
    """
    if not data_dir:
        raise UserError(f"dataset 'images' needs data-dir: a folder with {IMAGE_FOLDERS}")
    root = absolute(data_dir, "data-dir")
    classes = _classes(root)
    splits = {split: images_by_class(root, [f"{split}/{c}" for c in classes]) for split in SPLITS}

    def decode() -> Arrays:
        images = decode_splits(root, splits)
        mean, std = channel_statistics(images["train_images"])
        return {"classes": np.array(classes), "mean": mean, "std": std, **images}

    return cached_arrays("images", str(root), file_versions(root, splits), decode)


def channel_statistics(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation per channel of uint8 [n, H, W, ch], on the scale 0..1.

    The deviation is at least one grey level, so that division by it is safe.
    """
    total = np.zeros(images.shape[-1])
    squares = np.zeros(images.shape[-1])
    for start in range(0, len(images), _STATISTICS_CHUNK):
        values = images[start : start + _STATISTICS_CHUNK].reshape(-1, images.shape[-1]) / 255.0
        total += values.sum(axis=0)
        squares += (values * values).sum(axis=0)
    pixels = images[..., 0].size
    mean = total / pixels
    return mean, np.sqrt(np.maximum(squares / pixels - mean * mean, 1 / 255**2))


def class_folders(folder: Path) -> list[str]:
    """Return the names of the folders in a folder, sorted, without hidden ones."""
    with os.scandir(folder) as entries:
        return sorted(e.name for e in entries if e.is_dir() and not e.name.startswith("."))


def _classes(root: Path) -> list[str]:
    """Check that both splits exist and have the same classes; return the class names."""
    by_split = {}
    for split in SPLITS:
        if not (root / split).is_dir():
            missing = f"no folder '{split}' in" if root.is_dir() else "there is no"
            raise UserError(f"{missing} data-dir {root}; it must be laid out as {IMAGE_FOLDERS}")
        by_split[split] = set(class_folders(root / split))
    for split, other in (SPLITS, SPLITS[::-1]):
        if extra := by_split[split] - by_split[other]:
            raise UserError(
                f"class '{min(extra)}' is in {root / split} but not in {root / other}; "
                "both must have the same class folders"
            )
    if len(by_split["train"]) < 2:
        raise UserError(f"{root / 'train'} must have at least two class folders")
    return sorted(by_split["train"])


def images_by_class(
    root: Path, folders: Sequence[str], labels: Sequence[int] | None = None
) -> ImageFiles:
    """List the images of one folder for each class, sorted by name; `labels`: of the folders.

    Raises UserError for a folder without images, or with images of kinds that are not read.
    """
    names: list[str] = []
    counts = np.zeros(len(folders), dtype=np.int64)
    for index, folder in enumerate(folders):
        files = _image_names(root / folder)
        names += [f"{folder}/{name}" for name in files]
        counts[index] = len(files)
    classes = range(len(folders)) if labels is None else labels
    return ImageFiles(names, np.repeat(np.array(classes, dtype=np.int64), counts))


def _image_names(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            visible = sorted(
                (each for each in entries if each.name[0] != "."), key=attrgetter("name")
            )
    except OSError as error:
        raise UserError(f"cannot read class folder {folder}: {error.strerror}") from error
    for entry in visible:
        if not entry.is_file():
            kind = "folder" if entry.is_dir() else "dangling link or device"
            raise UserError(
                f"class folder {folder} has a {kind} '{entry.name}': move its images into the "
                "class folder itself, or take it out of data-dir"
            )
    found = [each.name for each in visible]
    for name in found:
        if name.lower().endswith(_OTHER_IMAGES):
            raise UserError(
                f"{folder / name} is an image of a kind that is not read: convert it to .png, or "
                "take it out of data-dir"
            )
    names = [name for name in found if name.lower().endswith(SUFFIXES)]
    if not names:
        raise UserError(f"no image ({', '.join(SUFFIXES)}) in class folder {folder}")
    return names


def file_versions(root: Path, splits: Mapping[str, ImageFiles]) -> list[str]:
    """Return a text for each image that changes with its file."""
    names = [name for files in splits.values() for name in files.names]
    return [file_version(name, (root / name).stat()) for name in names]


def decode_splits(root: Path, splits: Mapping[str, ImageFiles]) -> Arrays:
    """Return the images and labels of the splits, by "<split>_images" and "<split>_labels".

    Raises:
        UserError: a file cannot be read, is not square, or differs in size from the first.
    """
    first = root / next(name for files in splits.values() for name in files.names)
    side = square_side(first, read_image(first))
    pixels = unify_channels(
        {split: read_images(root, files.names, side) for split, files in splits.items()}
    )
    images = {f"{split}_images": array for split, array in pixels.items()}
    return {**images, **{f"{split}_labels": files.labels for split, files in splits.items()}}


def read_images(
    root: Path, names: Sequence[str], side: int, resize: bool = False
) -> tuple[np.ndarray, bool]:
    """Return the images uint8 [n, side, side, 3] and whether all of them are greyscale.

    Args:
        root: the folder that `names` are relative to.
        names: of the files.
        side: of the square images in pixels.
        resize: scale images of other sizes, without keeping their ratio, instead of refusing them.

    Raises:
        UserError: a file cannot be read, or has another size.
    """
    paths = (root / name for name in names)
    photos = ((path, read_image(path, side if resize else None)) for path in paths)
    return stack_photos(photos, len(names), side)


def stack_photos(
    photos: Iterable[tuple[object, np.ndarray]], count: int, side: int
) -> tuple[np.ndarray, bool]:
    """Return `count` photos as uint8 [count, side, side, 3], and whether all are greyscale.

    Args:
        photos: pairs of a name for errors, and uint8 [H, W, 1] or [H, W, 3].
        count: how many there are.
        side: of the square images in pixels.

    Raises:
        UserError: a photo has another size, or this machine's memory cannot hold them all.
    """
    needed, memory = 3 * count * side**2, psutil.virtual_memory().total
    if needed > memory:
        raise UserError(
            f"{count} images of {side}x{side} pixels need {needed / 1e9:.0f} GB of memory, and "
            f"this machine has {memory / 1e9:.0f}: make the images smaller"
        )
    images = np.empty((count, side, side, 3), dtype=np.uint8)
    grey = True
    for index, (name, photo) in enumerate(tracked(photos, "decoding images", count)):
        if photo.shape[:2] != (side, side):
            raise UserError(
                f"all images must have the same size, but {name} is "
                f"{photo.shape[1]}x{photo.shape[0]} and not {side}x{side}"
            )
        grey = grey and photo.shape[2] == 1
        images[index] = photo  # broadcasts one grey channel to three
    return images, grey


def unify_channels(pixels: Mapping[str, tuple[np.ndarray, bool]]) -> Arrays:
    """Return each split's images, as uint8 [n, H, W, 1] if all images are greyscale.

    `pixels` has the results of `stack_photos` by split. Otherwise images keep three channels.
    """
    channels = 1 if all(grey for _, grey in pixels.values()) else 3
    return {
        split: np.ascontiguousarray(images[..., :channels]) for split, (images, _) in pixels.items()
    }


def square_side(name: object, photo: np.ndarray) -> int:
    """Return the side of a photo [H, W, channels]; raises UserError unless H is W."""
    height, width = photo.shape[:2]
    if height != width:
        raise UserError(f"images must be square, but {name} is {width}x{height}")
    return int(width)


def read_image(path: Path, side: int | None = None) -> np.ndarray:
    """Decode one file, scaled to `side` if given, to uint8 [H, W, 1] (greyscale) or [H, W, 3].

    Raises:
        UserError: the file cannot be read, or has more than 8 bits per channel.
    """
    with open_image(path) as image:
        return to_bytes(f"image {path}", image, side)


def check_depth(name: str, image: Image) -> None:
    """Raise UserError that contains `name` for an image with more than 8 bits per channel."""
    if image.mode[0] in "IF":
        raise UserError(f"{name} has more than 8 bits per channel, which is not handled")


def to_bytes(name: str, image: Image, side: int | None = None) -> np.ndarray:
    """Return an image, scaled to `side` if given, as uint8 [H, W, 1] (greyscale) or [H, W, 3].

    Raises:
        UserError: the image has more than 8 bits per channel; the message contains `name`.
    """
    from PIL.Image import Resampling

    check_depth(name, image)
    plain = image.convert("L" if image.mode in ("1", "L") else "RGB")
    if side is not None and plain.size != (side, side):
        plain = plain.resize((side, side), Resampling.BILINEAR)
    array = np.asarray(plain)
    return array[..., None] if array.ndim == 2 else array


@contextmanager
def open_image(path: Path) -> Iterator[Image]:
    """Open an image file; any failure in the block becomes a UserError that names the file."""
    import PIL.Image

    try:
        with PIL.Image.open(path) as image:
            yield image
    except UserError:
        raise
    except Exception as error:  # Pillow raises many types of exceptions
        raise UserError(f"cannot read image {path}: {error}") from error
