"""Mistakes in a user's data that no error would show: wrong arrays, wrong files, lost pixels."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedapp.core.errors import UserError
from fedapp.data.batches.in_memory import batch_bounds
from fedapp.data.datasets import DATASETS, load_dataset
from fedapp.data.readers.client_folders import _all_classes
from fedapp.data.readers.formats import IdxFormat
from fedapp.data.readers.images import class_folders
from fedapp.data.readers.pixels import read_central_square, read_image
from fedapp.data.readers.public import _move

pytestmark = pytest.mark.usefixtures("cache")
DIGITS = DATASETS["digits"]


def save(path: Path, mode: str = "RGB", size: int = 8) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, (size, size)).save(path)
    return path


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"train_images": lambda a: a / 255}, "train images .* float64 .* must be bytes"),
        ({"test_images": lambda a: a[..., 0]}, r"test images .* uint8 \[359, 8, 8\]"),
        ({"test_images": lambda a: a[:, :4]}, r"\[359, 4, 8, 1\]"),
        ({"train_labels": lambda a: a[:-1]}, r"train labels of shape \[1437\] for 1438 images"),
        ({"train_labels": lambda a: a + 1}, "train labels .* whole numbers from 0 to 9"),
        ({"test_labels": lambda a: a * 1.0}, "test labels .* whole numbers from 0 to 9"),
        ({"mean": lambda a: 255 * a, "std": lambda a: 255 * a}, "on the scale 0 to 1"),
        ({"std": lambda a: 0 * a}, "with a deviation above 0"),
    ],
)
def test_arrays_that_are_no_images_and_labels_are_refused(change, sentence, monkeypatch):
    def read(origin):
        arrays = {name: array for name, array in DIGITS.read(origin).items() if name != "digest"}
        return arrays | {name: function(arrays[name]) for name, function in change.items()}

    monkeypatch.setitem(DATASETS, "mine", replace(DIGITS, read=read))
    with pytest.raises(UserError, match=sentence):
        load_dataset("mine")


def test_transparent_pixels_are_white(tmp_path):
    clear = Image.new("RGBA", (8, 8), (0, 0, 0, 0))
    clear.paste((0, 0, 0, 255), (0, 0, 4, 8))  # a black shape on the left
    clear.save(tmp_path / "icon.png")
    pixels = read_image(tmp_path / "icon.png")
    assert pixels.shape == (8, 8, 3)
    assert np.unique(pixels[:, :4]).tolist() == [0]
    assert np.unique(pixels[:, 4:]).tolist() == [255]
    assert np.array_equal(read_central_square(tmp_path / "icon.png", 8), pixels)
    Image.new("LA", (8, 8), (7, 255)).save(tmp_path / "grey.png")
    grey = read_image(tmp_path / "grey.png")
    assert grey.shape == (8, 8, 1)
    assert np.unique(grey).tolist() == [7]
    half = Image.new("RGBA", (8, 8), (255, 0, 0, 255))
    half.save(tmp_path / "opaque.png")
    assert read_image(tmp_path / "opaque.png")[0, 0].tolist() == [255, 0, 0]


def test_an_image_beside_the_class_folders_is_named(tmp_path):
    save(tmp_path / "cat" / "0.png")
    lost = save(tmp_path / "lost.png")
    with pytest.raises(UserError, match=f"{lost} belongs to no class"):
        class_folders(tmp_path)


def test_classes_that_differ_in_spelling_alone_are_refused(tmp_path):
    for client, name in (("a", "Cat"), ("b", "cat")):
        save(tmp_path / client / "train" / name / "0.png")
    with pytest.raises(UserError, match="folders 'Cat' and 'cat', which differ in spelling alone"):
        _all_classes(tmp_path, ["a", "b"])


@pytest.mark.parametrize("name", ["train", "test"])
def test_a_class_may_be_called_as_a_split(name, tmp_path):
    for folder in ("bus", name):
        for index in range(4):
            save(tmp_path / folder / f"{index}.png")
    data = load_dataset("images", str(tmp_path), test_share=0.25)
    assert data.classes == tuple(sorted(("bus", name)))
    assert len(data.test_labels) == 2


def test_fashion_mnist_is_not_read_from_the_files_of_mnist(tmp_path):
    def write(file: str, array: list | np.ndarray) -> None:
        array = np.asarray(array, np.uint8)
        head = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
        (tmp_path / file).write_bytes(head + array.tobytes())

    for prefix in ("train", "t10k"):
        write(f"{prefix}-images-idx3-ubyte", np.zeros((10, 28, 28)))
        write(f"{prefix}-labels-idx1-ubyte", [5, 0, 4, 1, 9, 2, 1, 3, 1, 4])
    paths = IdxFormat("MNIST/raw").find(tmp_path)
    assert len(IdxFormat("MNIST/raw").read(paths)["train_labels"]) == 10
    with pytest.raises(UserError, match="these are the files of MNIST/raw, named alike"):
        IdxFormat("FashionMNIST/raw").read(paths)


def test_batches_of_one_image_stay_batches_of_one():
    assert batch_bounds(3, 1) == [(0, 1), (1, 2), (2, 3)]
    assert batch_bounds(5, 2) == [(0, 2), (2, 5)]


@pytest.mark.parametrize("there", [False, True])
def test_a_download_is_moved_whole_or_into_what_is_there(there, tmp_path):
    source, target = tmp_path / "scratch", tmp_path / "data" / "set"
    save(source / "jpg" / "0.png")
    if there:
        save(target / "other.png")
    _move(source, target)
    assert (target / "jpg" / "0.png").is_file()
    assert (target / "other.png").is_file() == there
