"""The folders of all clients in one place: CLIENT/train/CLASS/*.jpg and CLIENT/test/CLASS/*.jpg.

Each is read as its client's host reads its own folder with partition 'own', and refused for the
same mistakes. So a simulation of the hosts gives the model that they will train.
"""

import os
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fedapp.core.arrays import Arrays
from fedapp.core.errors import UserError
from fedapp.core.paths import absolute
from fedapp.data.partition.client_folders import ClientFolders, listed
from fedapp.data.readers.cache import cached_arrays
from fedapp.data.readers.images import (
    SPLITS,
    SUFFIXES,
    ImageFiles,
    class_folders,
    decode_splits,
    file_versions,
)
from fedapp.data.readers.own_images import class_names, named_files, named_folders, symmetric
from fedapp.data.readers.sources import Origin
from fedapp.data.readers.stacking import SCALE_THEM

LAYOUT = "CLIENT/train/CLASS/*.jpg and CLIENT/test/CLASS/*.jpg (or .png, .webp, .bmp, .tif)"


def load_client_folders(origin: Origin) -> Arrays:
    """Return the images and labels of both splits, of one client after the other.

    Without `classes` these are all class folders of the clients, sorted by name. The arrays of
    `ClientFolders` are among the returned ones.

    Raises:
        UserError: no folder, another number of clients than `origin.clients`, a client without
            training images, no test images at all, or what `load_named_images` refuses.
    """
    if not origin.data_dir:
        raise UserError(f"partition 'folders' needs data-dir: a folder with {LAYOUT}")
    root = absolute(origin.data_dir, "data-dir")
    clients = _clients(root, origin.clients)
    classes = class_names(origin.classes) if origin.classes else _all_classes(root, clients)
    files = {client: named_files(root / client, classes) for client in clients}
    if not any(splits["test"].names for splits in files.values()):
        raise UserError(
            f"no client folder in data-dir {root} has images to test on: give at least one client "
            "CLIENT/test/CLASS/*.jpg"
        )

    def decode() -> Arrays:
        return {"classes": np.array(classes), **_decode(root, files, origin.image_size)}

    versions = [*classes]
    for client, splits in files.items():
        versions += [client, *file_versions(root / client, splits)]
    return cached_arrays("client-folders", origin.source(root), versions, decode)


def _clients(root: Path, expected: int) -> list[str]:
    """Return the names of the clients' folders, all of which have training images."""
    if not root.is_dir():
        raise UserError(f"data-dir {root} does not exist; it must have {LAYOUT}")
    for name in sorted(os.listdir(root)):
        if name.lower().endswith(SUFFIXES) and (root / name).is_file():
            raise UserError(
                f"{root / name} belongs to no client; move it to its place in {root}: {LAYOUT}"
            )
    clients = class_folders(root)
    if not clients:
        raise UserError(f"data-dir {root} has no client folders; it must have {LAYOUT}")
    for client in clients:
        if not named_folders(root / client, "train"):
            raise UserError(
                f"client folder {root / client} has no images to train on; data-dir {root} must "
                f"have {LAYOUT}"
            )
    if len(clients) != expected:
        raise UserError(
            f"num-clients is {expected}, but data-dir {root} has {len(clients)} client folders "
            f"({listed(clients)}); set num-clients={len(clients)}"
        )
    return clients


def _all_classes(root: Path, clients: Sequence[str]) -> list[str]:
    """Return the names of all clients' class folders, sorted."""
    both = [named_folders(root / client, split) for client in clients for split in SPLITS]
    classes = sorted({name for names in both for name in names})
    if len(classes) < 2:
        raise UserError(
            f"the clients in data-dir {root} have one class folder, '{classes[0]}', but must have "
            f"two or more: {LAYOUT}"
        )
    known: dict[str, str] = {}
    for name in classes:
        other = known.setdefault(unicodedata.normalize("NFC", name).casefold(), name)
        if other != name:
            raise UserError(
                f"the clients in data-dir {root} have class folders '{other}' and '{name}', which "
                "differ in spelling alone; rename one, or list all classes in run-config key "
                "'classes'"
            )
    return classes


def _decode(root: Path, files: Mapping[str, Mapping[str, ImageFiles]], side: int) -> Arrays:
    """Return the images and labels of all clients, and how many each client has."""
    parts = [decode_splits(root / client, splits, side) for client, splits in files.items()]
    _check_forms(root, list(files), [part["train_images"].shape[1:] for part in parts])
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    train, test = (np.array([len(part[f"{s}_labels"]) for part in parts]) for s in SPLITS)
    return {**symmetric(joined), **ClientFolders(tuple(files), train, test).as_arrays()}


def _check_forms(root: Path, clients: Sequence[str], forms: Sequence[tuple[int, ...]]) -> None:
    """Raise UserError if a client's images have another shape [H, W, channels] than the first's.

    A server refuses such a host, too.
    """
    for client, form in zip(clients, forms, strict=True):
        if form != forms[0]:
            same_size = form[:2] == forms[0][:2]
            raise UserError(
                f"client folder {root / client} has images of {_words(form)}, but "
                f"{root / clients[0]} of {_words(forms[0])}"
                + ("; convert all to greyscale, or all to colours" if same_size else SCALE_THEM)
            )


def _words(form: tuple[int, ...]) -> str:
    """Return a shape [H, W, channels] in words."""
    return f"{form[1]}x{form[0]} pixels in {'colours' if form[2] == 3 else 'grey'}"
