"""Photos of any size: with `image-size`, the central square of each is scaled to it."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

from fedapp.core.errors import UserError
from fedapp.data.datasets import load_dataset
from fedapp.data.readers.own_images import load_named_images
from fedapp.data.readers.pixels import read_central_square, read_image
from fedapp.interface.training import run
from fedapp.results.run_directory import RunDirectory
from fedapp.trained_models.classify import TrainedModel

pytestmark = pytest.mark.usefixtures("cache")
SIZES = [(64, 40), (30, 90), (51, 51), (16, 16)]
TURNED = 6  # the EXIF orientation of a photo whose camera was held upright


def photo(path: Path, size: tuple[int, int], colour: tuple[int, int, int], **options) -> None:
    """Write a photo whose central square has a colour and whose margins are white."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.new("RGB", size, "white")
    side = min(size)
    left, top = (size[0] - side) // 2, (size[1] - side) // 2
    ImageDraw.Draw(image).rectangle((left, top, left + side - 1, top + side - 1), fill=colour)
    image.save(path, **options)


@pytest.fixture
def folder(tmp_path) -> Path:
    """Red and blue photos of four sizes."""
    for split in ("train", "test"):
        for name, colour in (("red", (200, 0, 0)), ("blue", (0, 0, 200))):
            for index, size in enumerate(SIZES):
                photo(tmp_path / "photos" / split / name / f"{index}.png", size, colour)
    return tmp_path / "photos"


def test_the_central_square_of_each_photo_is_scaled(folder):
    data = load_dataset("images", str(folder), image_size=12)
    assert data.train_images.shape == data.test_images.shape == (8, 12, 12, 3)
    colours = data.train_images[:, 2:-2, 2:-2].reshape(8, -1, 3)  # at the edges colours mix
    assert (colours == colours[:, :1]).all()
    assert colours[:, 0].tolist() == [[0, 0, 200]] * 4 + [[200, 0, 0]] * 4
    own = load_named_images(str(folder), ["red", "blue"], 12)
    assert np.array_equal(own["train_images"][:4], data.train_images[:4])
    assert own["train_labels"].tolist() == [1] * 4 + [0] * 4


def test_each_size_is_kept_in_the_cache_under_its_own_name(folder):
    sides = [load_dataset("images", str(folder), image_size=side).image_size for side in (8, 20, 8)]
    assert sides == [8, 20, 8]


def test_without_a_size_the_error_names_the_key_that_helps(folder):
    with pytest.raises(UserError, match=r"0.png is 64x40; set image-size=N to scale the central"):
        load_dataset("images", str(folder))
    for split in ("train", "test"):
        for name in ("red", "blue"):
            photo(folder / split / name / "0.png", (16, 16), (9, 9, 9))
            (folder / split / name / "1.png").unlink()
    with pytest.raises(UserError) as error:
        load_dataset("images", str(folder))
    assert "2.png is 51x51 and not 16x16; 1 more images cannot" in str(error.value)
    assert str(error.value).count("set image-size=N to scale") == 1


def test_all_broken_files_are_counted_in_one_attempt(folder):
    broken = [folder / "train" / name / "1.png" for name in ("blue", "red")]
    broken.append(folder / "train" / "red" / "2.png")
    for path in broken:
        path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(UserError) as error:
        load_dataset("images", str(folder), image_size=8)
    assert f"cannot read image {broken[0]}" in str(error.value)
    assert f"; 2 more images cannot be used, for example: cannot read image {broken[1]}" in str(
        error.value
    )


def test_no_more_files_are_tried_than_the_error_can_count(folder, monkeypatch):
    monkeypatch.setattr("fedapp.data.readers.stacking._MOST_PROBLEMS", 3)
    for path in (folder / "train").glob("*/*"):
        path.write_text("no image")
    with pytest.raises(UserError, match="; at least 2 more images cannot be used"):
        load_dataset("images", str(folder), image_size=8)


def test_a_photo_is_turned_as_its_camera_says(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = TURNED
    stripes = np.zeros((40, 40, 3), np.uint8)
    stripes[:20] = 255  # the upper half is white
    Image.fromarray(stripes).save(tmp_path / "turned.jpg", exif=exif, quality=95)
    pixels = read_central_square(tmp_path / "turned.jpg", 10)
    assert (pixels[:, 6:] > 200).all()  # now the right half is
    assert (pixels[:, :4] < 50).all()
    whole = read_image(tmp_path / "turned.jpg")
    assert (whole[:, 24:] > 200).all()
    assert (whole[:, :16] < 50).all()


@pytest.mark.parametrize(("name", "exif"), [("a.png", b"Exif\0\0II"), ("b.jpg", b"Exif\0\0no")])
def test_a_photo_with_damaged_exif_data_is_read_as_it_is(tmp_path, name, exif):
    Image.new("RGB", (9, 9), (10, 20, 30)).save(tmp_path / name, exif=exif)
    assert read_image(tmp_path / name).shape == (9, 9, 3)
    assert read_central_square(tmp_path / name, 4).shape == (4, 4, 3)


def test_a_large_jpeg_is_decoded_at_a_fraction_of_its_size_and_looks_the_same(tmp_path):
    rng = np.random.default_rng(0)
    coarse = Image.fromarray(rng.integers(0, 256, (8, 12, 3), np.uint8))
    coarse.resize((1200, 800), Image.Resampling.BICUBIC).save(tmp_path / "large.jpg", quality=95)
    pixels = read_central_square(tmp_path / "large.jpg", 32).astype(int)
    whole = Image.open(tmp_path / "large.jpg").crop((200, 0, 1000, 800))
    expected = np.asarray(whole.resize((32, 32), Image.Resampling.BILINEAR)).astype(int)
    assert np.abs(pixels - expected).mean() < 2


def test_a_run_on_photos_classifies_other_photos_in_the_same_way(folder, tmp_path):
    trained = run(
        method="fedavg", dataset="images", data_dir=str(folder), image_size=16, num_clients=2,
        partition="iid", num_rounds=12, lr=0.1, batch_size=4, output_dir=str(tmp_path),
        run_name="r", engine="in-process",
    )  # fmt: skip
    assert trained.image_format.side == 16
    photo(tmp_path / "new.png", (70, 33), (190, 10, 0))
    model = TrainedModel.of(RunDirectory(trained.path))
    assert model.classify([tmp_path / "new.png"])[0].label == "red"


def test_data_sets_of_one_size_are_not_scaled(folder, monkeypatch):
    with pytest.raises(UserError, match="is 16, but dataset 'cifar10' has images of one size"):
        run(dataset="cifar10", image_size=16)
