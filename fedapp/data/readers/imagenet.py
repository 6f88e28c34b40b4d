"""ImageNet-100: a hundred classes of an ImageNet folder, decoded when they are used.

The papers that train on it do not name the hundred classes. A file lists them, one WordNet id per
line; without a file they are the first hundred in sorted order.
"""

import hashlib
from pathlib import Path
from typing import Any

from fedapp.core.errors import UserError
from fedapp.core.paths import absolute, expanded
from fedapp.data.readers.encoded import EncodedImages
from fedapp.data.readers.formats import damaged, text_lines
from fedapp.data.readers.images import class_folders, images_by_class
from fedapp.data.readers.sources import Origin

CLASSES = 100
SIDE = 224
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of torchvision's ImageNet models
LAYOUT = "train/WNID/*.JPEG and val/WNID/*.JPEG (the folder of ImageNet, or of 100 of its classes)"


def read_imagenet100(origin: Origin) -> dict[str, Any]:
    """Return classes, mean, std, labels and `EncodedImages` of both splits.

    Raises:
        UserError: the layout is wrong, or the class list does not name 100 of its classes.
    """
    if not origin.data_dir:
        raise UserError(f"dataset 'imagenet100' needs data-dir: a folder with {LAYOUT}")
    root = absolute(origin.data_dir, "data-dir")
    classes = _classes(root, origin.class_list)
    content: dict[str, Any] = {"classes": classes, "mean": MEAN, "std": STD}
    names = hashlib.sha256()  # reading every image would take minutes
    for split, folder in (("train", "train"), ("test", "val")):
        files = images_by_class(root, [f"{folder}/{wnid}" for wnid in classes])
        content[f"{split}_images"] = EncodedImages(root, files.names, SIDE)
        content[f"{split}_labels"] = files.labels
        names.update("\n".join(files.names).encode("utf-8", "surrogateescape"))
    return {**content, "digest": names.hexdigest()}


def _classes(root: Path, class_list: str) -> list[str]:
    for split in ("train", "val"):
        if not (root / split).is_dir():
            raise UserError(
                f"no folder '{split}' in data-dir {root}; ImageNet is laid out as {LAYOUT}"
            )
    existing = class_folders(root / "train")
    if not class_list:
        if len(existing) < CLASSES:
            raise UserError(f"{root / 'train'} has {len(existing)} class folders, not {CLASSES}")
        return existing[:CLASSES]
    path = root / expanded(class_list, "class-list")  # an absolute path stays as it is
    listed = [line.split()[0] for line in text_lines(path)]
    if len(set(listed)) != CLASSES or len(listed) != CLASSES:
        raise damaged(path, f"it lists {len(set(listed))} different classes, not {CLASSES}")
    if absent := set(listed).difference(existing):
        raise UserError(f"class '{min(absent)}' of {path} has no folder in {root / 'train'}")
    return listed
