"""Image folders: decoded as laid out, and every way to lay them out wrongly named in a sentence."""

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedapp.core.errors import UserError
from fedapp.data.dataset import Dataset
from fedapp.data.datasets import load_dataset
from fedapp.data.readers.pixels import read_image
from fedapp.data.readers.stacking import channel_statistics, stack_photos

pytestmark = pytest.mark.usefixtures("cache")


def write_image(
    path: Path, mode: str = "RGB", size: tuple[int, int] = (8, 8), seed: int = 0
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (size[1], size[0], 3) if mode == "RGB" else (size[1], size[0])
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape, np.uint8)).save(path)


@pytest.fixture
def folder(tmp_path) -> Path:
    """A sound folder: classes cat and dog, 3 training and 1 test image each."""
    root = tmp_path / "pets"
    for label, name in enumerate(["dog", "cat"]):
        for index, file in enumerate(["b.png", "a.png", "c.PNG"]):
            write_image(root / "train" / name / file, seed=10 * label + index)
        write_image(root / "test" / name / "t.png", seed=10 * label + 5)
    return root


def load(folder: Path) -> Dataset:
    return load_dataset("images", str(folder))


def test_images_come_sorted_by_class_and_file_name(folder):
    data = load(folder)
    assert data.classes == ("cat", "dog")
    assert data.train_labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.test_labels.tolist() == [0, 1]
    names = [f"train/{c}/{f}" for c in ("cat", "dog") for f in ("a.png", "b.png", "c.PNG")]
    expected = np.stack([np.asarray(Image.open(folder / name)) for name in names])
    assert np.array_equal(data.train_images, expected)


def test_mean_and_deviation_are_those_of_the_training_images(folder):
    data = load(folder)
    values = data.train_images.reshape(-1, 3) / 255
    assert data.mean == pytest.approx(values.mean(axis=0))
    assert data.std == pytest.approx(values.std(axis=0))


def test_statistics_in_chunks_are_exact_and_a_constant_channel_can_be_divided_by(monkeypatch):
    monkeypatch.setattr("fedapp.data.readers.stacking._STATISTICS_CHUNK", 3)
    images = np.random.default_rng(0).integers(0, 256, (10, 4, 4, 2), dtype=np.uint8)
    images[..., 1] = 9
    mean, std = channel_statistics(images)
    assert mean == pytest.approx(images.reshape(-1, 2).mean(axis=0) / 255)
    assert std == pytest.approx([images[..., 0].std() / 255, 1 / 255])


def test_greyscale_images_keep_one_channel_only_if_all_are_greyscale(tmp_path):
    for split in ("train", "test"):
        for label, name in enumerate(["a", "b"]):
            write_image(tmp_path / "data" / split / name / "1.png", "L", seed=label)
    data = load(tmp_path / "data")
    assert data.channels == len(data.mean) == 1
    write_image(tmp_path / "data" / "test" / "b" / "2.png", "RGB")
    mixed = load(tmp_path / "data")
    assert mixed.channels == 3
    assert np.array_equal(mixed.train_images, np.repeat(data.train_images, 3, axis=3))


@pytest.mark.parametrize("mode", ["RGBA", "P", "LA", "CMYK", "1"])
def test_other_modes_are_converted(folder, mode):
    path = folder / "train" / "cat" / ("z.jpg" if mode == "CMYK" else "z.png")
    Image.new("RGB", (8, 8), (255, 255, 255)).convert(mode).save(path)
    data = load(folder)
    assert data.train_images.shape == (7, 8, 8, 3)
    assert (data.train_images[3] > 250).all()


@pytest.mark.parametrize("suffix", [".webp", ".bmp", ".tif", ".tiff"])
def test_other_kinds_of_images_are_read(folder, suffix):
    path = folder / "train" / "cat" / f"z{suffix}"
    write_image(path)
    data = load(folder)
    assert data.train_images.shape == (7, 8, 8, 3)
    assert np.array_equal(data.train_images[3], read_image(path))


@pytest.mark.parametrize("name", ["x.gif", "x.HEIC", "x.avif"])
def test_an_image_that_is_not_read_is_named_instead_of_left_out(folder, name):
    path = folder / "train" / "cat" / name
    path.write_bytes(b"image")
    with pytest.raises(UserError, match=f"{path} is an image of a kind that is not read: convert"):
        load(folder)


@pytest.mark.parametrize("kind", ["folder", "dangling link or device"])
def test_what_would_be_left_out_of_a_class_is_named(folder, kind):
    path = folder / "train" / "cat" / "more"
    path.mkdir() if kind == "folder" else path.symlink_to(folder / "gone.png")
    with pytest.raises(UserError, match=f"{path.parent} has a {kind} 'more': move its images into"):
        load(folder)


def test_jpeg_suffixes_are_read_and_other_and_hidden_files_are_not(folder):
    for name in ("x.jpeg", "y.JPG"):
        write_image(folder / "test" / "cat" / name)
    for name in ("notes.txt", ".DS_Store", "._x.jpeg"):
        (folder / "test" / "cat" / name).write_text("no image")
    (folder / "train" / ".cache").mkdir()
    assert load(folder).test_labels.tolist() == [0, 0, 0, 1]


def broken_file(folder: Path) -> Path:
    path = folder / "train" / "dog" / "b.png"
    path.write_bytes(path.read_bytes()[:60])
    return path


def text_file(folder: Path) -> Path:
    path = folder / "test" / "cat" / "t.png"
    path.write_text("no image")
    return path


def other_size(folder: Path) -> Path:
    path = folder / "train" / "dog" / "a.png"
    write_image(path, size=(9, 8))
    return path


def oblong(folder: Path) -> Path:
    for path in folder.glob("*/*/*"):
        write_image(path, size=(10, 8))
    return folder / "train" / "cat" / "a.png"


def deep_pixels(folder: Path) -> Path:
    path = folder / "train" / "dog" / "a.png"
    Image.fromarray(np.zeros((8, 8), np.uint16)).save(path)
    return path


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (broken_file, "cannot read image {path}"),
        (text_file, "cannot read image {path}"),
        (other_size, "same size, but {path} is 9x8 and not 8x8"),
        (oblong, "images must be square, but {path} is 10x8"),
        (deep_pixels, "image {path} has more than 8 bits per channel"),
    ],
)
def test_an_offending_file_is_named(folder, spoil, message):
    path = spoil(folder)
    with pytest.raises(UserError) as error:
        load(folder)
    assert message.format(path=path) in str(error.value)


def test_images_beyond_this_machines_memory_are_refused_before_they_are_read():
    with pytest.raises(UserError, match=r"1000000000 images of 999x999 .* make the images smaller"):
        stack_photos(range(10**9), lambda position: np.empty(0), 999)


def without_test(folder: Path) -> None:
    (folder / "test").rename(folder / "validation")


def extra_class(folder: Path) -> None:
    write_image(folder / "test" / "cow" / "1.png")


def lacking_class(folder: Path) -> None:
    (folder / "test" / "cat").rename(folder / "cat")


def empty_class(folder: Path) -> None:
    (folder / "train" / "dog").rename(folder / "dog")
    (folder / "train" / "dog").mkdir()


def one_class(folder: Path) -> None:
    for split in ("train", "test"):
        (folder / split / "cat").rename(folder / f"cat-{split}")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (without_test, "no folder 'test' in data-dir {folder}; it must be laid out as"),
        (extra_class, "class 'cow' is in {folder}/test but not in {folder}/train"),
        (lacking_class, "class 'cat' is in {folder}/train but not in {folder}/test"),
        (empty_class, ".tif, .tiff) in class folder {folder}/train/dog"),
        (one_class, "{folder}/train must have at least two class folders"),
    ],
)
def test_a_wrong_layout_is_explained(folder, spoil, message):
    spoil(folder)
    with pytest.raises(UserError) as error:
        load(folder)
    assert message.format(folder=folder) in str(error.value)


def latin_class(folder: Path) -> None:
    for split in ("train", "test"):
        write_image(folder / split / os.fsdecode(b"caf\xe9") / "1.png")


def test_a_class_folder_whose_name_is_no_utf_8_is_refused(folder):
    latin_class(folder)
    with pytest.raises(UserError, match=r"is called 'caf\\udce9', which is not UTF-8") as error:
        load(folder)
    assert str(error.value).encode()


def test_data_dir_is_needed_and_must_exist(tmp_path):
    with pytest.raises(UserError, match="'images' needs data-dir"):
        load_dataset("images")
    with pytest.raises(UserError, match=f"there is no data-dir {tmp_path}/none; it must"):
        load(tmp_path / "none")
