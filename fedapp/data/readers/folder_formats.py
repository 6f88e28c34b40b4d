"""Public data sets that are published as folders of image files with lists.

The cache key depends on lists and folders only, which are cheap to check, not on the images. A data
set is decoded again when a list, or the set of files in a folder, changes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from fedapp.core.arrays import Arrays
from fedapp.data.readers.formats import damaged, text_lines
from fedapp.data.readers.images import class_folders, images_by_class, read_images
from fedapp.data.readers.pixels import read_image


def find_folders(root: Path, files: Sequence[str], folders: Sequence[str]) -> dict[str, Path]:
    """Return `root` (as "."), files, folders and their subfolders; {} unless all exist."""
    if not all((root / name).is_file() for name in files):
        return {}
    if not all((root / name).is_dir() for name in folders):
        return {}
    below = [path for name in folders for path in sorted((root / name).iterdir()) if path.is_dir()]
    below += [path / "images" for path in below if (path / "images").is_dir()]
    subfolders = {str(path.relative_to(root)): path for path in below}
    return {".": root, **{name: root / name for name in (*files, *folders)}, **subfolders}


@dataclass(frozen=True)
class CinicFormat:
    """CINIC-10: train/CLASS/*.png and test/CLASS/*.png; its valid/ is not used.

    FedNTD trains on 90 000 images: those of train/.
    """

    folder: str

    def find(self, folder: Path) -> dict[str, Path]:
        """Find both splits and their class folders."""
        return find_folders(folder, (), ("train", "test"))

    def read(self, paths: dict[str, Path]) -> Arrays:
        """Read the images of both splits, 32x32."""
        root = paths["."]
        classes = class_folders(root / "train")
        arrays: Arrays = {"classes": np.array(classes, dtype=np.str_)}
        for split in ("train", "test"):
            files = images_by_class(root, [f"{split}/{name}" for name in classes])
            arrays[f"{split}_images"], _ = read_images(root, files.names, 32)
            arrays[f"{split}_labels"] = files.labels
        return arrays


@dataclass(frozen=True)
class TinyImageNetFormat:
    """Tiny-ImageNet: a folder for each class of training images, and one annotated val folder.

    The published test images have no labels, so the validation images are the test set.
    """

    folder: str

    def find(self, folder: Path) -> dict[str, Path]:
        """Find the lists and the image folders."""
        lists = ("wnids.txt", "val/val_annotations.txt")
        return find_folders(folder, lists, ("train", "val", "val/images"))

    def read(self, paths: dict[str, Path]) -> Arrays:
        """Read training and validation images, 64x64; classes are the sorted WordNet ids."""
        root = paths["."]
        classes = sorted(text_lines(paths["wnids.txt"]))
        train = images_by_class(root, [f"train/{wnid}/images" for wnid in classes])
        tests, test_labels = self._annotations(paths["val/val_annotations.txt"], classes)
        return {
            "classes": np.array(classes, dtype=np.str_),
            "train_images": read_images(root, train.names, 64)[0],
            "train_labels": train.labels,
            "test_images": read_images(root, tests, 64)[0],
            "test_labels": test_labels,
        }

    def _annotations(self, path: Path, classes: list[str]) -> tuple[list[str], np.ndarray]:
        """Read lines of file name, WordNet id and four numbers, separated by tabs."""
        label_of = {wnid: label for label, wnid in enumerate(classes)}
        names, labels = [], []
        for number, line in enumerate(text_lines(path), 1):
            name, _, rest = line.partition("\t")
            wnid = rest.split("\t")[0]
            if wnid not in label_of:
                raise damaged(path, f"line {number} names no class of wnids.txt: '{line[:60]}'")
            names.append(f"val/images/{name}")
            labels.append(label_of[wnid])
        return names, np.array(labels, dtype=np.int64)


@dataclass(frozen=True)
class FlowersFormat:
    """Flowers102: one folder of photos, and two MATLAB files with their classes and splits.

    The official training and validation splits (1020 each) form the training set. The official test
    split is the test set.
    """

    folder: str
    side: int  # photos are scaled to squares of this side in pixels

    def find(self, folder: Path) -> dict[str, Path]:
        """Find the lists and the folder of photos."""
        return find_folders(folder, ("imagelabels.mat", "setid.mat"), ("jpg",))

    def read(self, paths: dict[str, Path]) -> Arrays:
        """Read the photos of both splits, scaled to squares."""
        labels = _matlab(paths["imagelabels.mat"], "labels") - 1
        splits = {
            "train": np.concatenate([_matlab(paths["setid.mat"], k) for k in ("trnid", "valid")]),
            "test": _matlab(paths["setid.mat"], "tstid"),
        }
        arrays: Arrays = {}
        stretched = partial(read_image, side=self.side)
        for split, ids in splits.items():
            if not len(ids) or ids.min() < 1 or ids.max() > len(labels):
                raise damaged(paths["setid.mat"], f"image ids must be in 1..{len(labels)}")
            names = [f"jpg/image_{number:05d}.jpg" for number in ids]
            arrays[f"{split}_images"], _ = read_images(paths["."], names, self.side, stretched)
            arrays[f"{split}_labels"] = labels[ids - 1]
        return arrays


def _matlab(path: Path, key: str) -> np.ndarray:
    """Read a row of whole numbers from a MATLAB file."""
    from scipy.io import loadmat

    try:
        values = loadmat(path)[key]
        return values.astype(np.int64).reshape(-1)
    except Exception as error:  # scipy raises many types of exceptions
        raise damaged(path, f"it has no numbers '{key}' ({error})") from error
