"""The public data sets in their published files: location, format and properties.

Normalisation is that of the papers' protocols if they state one, otherwise that of the public code
bases on which they build, otherwise that of the training images.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedapp.core.arrays import Arrays
from fedapp.core.errors import UserError
from fedapp.core.locks import lock_file
from fedapp.core.paths import absolute, cache_folder
from fedapp.data.readers.cache import cached_arrays, file_version
from fedapp.data.readers.folder_formats import CinicFormat, FlowersFormat, TinyImageNetFormat
from fedapp.data.readers.formats import CifarFormat, FileFormat, IdxFormat, locate
from fedapp.data.readers.sources import Origin
from fedapp.data.readers.stacking import channel_statistics


@dataclass(frozen=True)
class PublicFiles:
    """A public data set in its published files: location, format and properties."""

    name: str
    torchvision_class: str | None  # None: torchvision cannot download it
    file_format: FileFormat
    image_shape: tuple[int, int, int]
    num_classes: int
    mean: tuple[float, ...]  # (): computed from the training images
    std: tuple[float, ...]
    classes: tuple[str, ...] = ()

    def read(self, origin: Origin) -> Arrays:
        """Find, or download, and read the files."""
        data_dir = origin.data_dir
        root = absolute(data_dir, "data-dir") if data_dir else cache_folder() / "datasets"
        if origin.download and self.torchvision_class is not None:
            self._download(root)
        paths, folder = locate(root, self.file_format), self.file_format.folder
        if not paths:
            note = f" (there is no {root})" if data_dir and not root.exists() else ""
            if (root / "train").is_dir():
                note = f" (for the class folders in {root / 'train'} set dataset='images')"
            raise UserError(
                f"dataset '{self.name}' is not in {root / folder}{note}; set data-dir to the "
                f"folder that holds {folder}, {self._other_way()}"
            )
        versions = [file_version(name, path.stat()) for name, path in paths.items()]
        return cached_arrays(self.name, str(root), versions, lambda: self._decode(paths))

    def _other_way(self) -> str:
        if self.torchvision_class:
            return "or download it (download=true; `fedapp reproduce --download`)"
        return "laid out as `fedapp datasets` says; it cannot be downloaded from here"

    def _download(self, root: Path) -> None:
        """Fetch the files unless they are there; half of a download never lies where data do."""
        scratch, folder = root / f".{self.name}.download", self.file_format.folder
        with lock_file(root / f".{self.name}.lock"):
            if locate(root, self.file_format):
                return
            import torchvision.datasets

            fetch = getattr(torchvision.datasets, str(self.torchvision_class))
            try:
                shutil.rmtree(scratch, ignore_errors=True)  # of a process that was killed
                scratch.mkdir(parents=True)
                fetch(str(scratch), download=True)
                _move(scratch / folder, root / folder)
                shutil.rmtree(scratch, ignore_errors=True)
            except Exception as error:  # network, disk and checksum errors of many types
                reason = " ".join(str(error).split())
                raise UserError(
                    f"could not download dataset '{self.name}' to {root}: {reason}; without a "
                    f"network copy its folder {folder} there, or name its place as data-dir"
                ) from error

    def _decode(self, paths: dict[str, Path]) -> Arrays:
        arrays = {"classes": np.array(self.classes), **self.file_format.read(paths)}
        if self.mean:
            arrays |= {"mean": np.array(self.mean), "std": np.array(self.std)}
        else:
            arrays["mean"], arrays["std"] = channel_statistics(arrays["train_images"])
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


def _move(source: Path, target: Path) -> None:
    """Move a folder in one step where there is none yet, so that no part of it is ever found."""
    if target.exists():
        shutil.copytree(source, target, dirs_exist_ok=True, copy_function=shutil.move)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        source.rename(target)


CIFAR10 = PublicFiles(
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
CIFAR100 = PublicFiles(
    "cifar100",
    "CIFAR100",
    CifarFormat("cifar-100-python", ("train",), "test", "meta", "fine_labels", "fine_label_names"),
    (32, 32, 3),
    100,
    (0.507, 0.487, 0.441),
    (0.267, 0.256, 0.276),
)
MNIST = PublicFiles(
    "mnist",
    "MNIST",
    IdxFormat("MNIST/raw"),
    (28, 28, 1),
    10,
    (0.1307,),
    (0.3081,),
    tuple("0123456789"),
)
FASHION_MNIST = PublicFiles(
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
CINIC10 = PublicFiles(
    "cinic10",
    None,
    CinicFormat("CINIC-10"),
    (32, 32, 3),
    10,
    (0.4789, 0.4723, 0.4305),  # published by its authors
    (0.2421, 0.2383, 0.2587),
)
TINY_IMAGENET = PublicFiles(
    "tiny-imagenet",
    None,
    TinyImageNetFormat("tiny-imagenet-200"),
    (64, 64, 3),
    200,
    (),
    (),
)
FLOWERS102 = PublicFiles(
    "flowers102",
    "Flowers102",
    FlowersFormat("flowers-102", 64),
    (64, 64, 3),
    102,
    (),
    (),
    tuple(str(number) for number in range(1, 103)),
)
