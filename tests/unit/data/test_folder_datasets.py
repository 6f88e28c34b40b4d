"""CINIC-10, Tiny-ImageNet and Flowers102 are read from small files in their published layout."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from fedapp.core.errors import UserError
from fedapp.data.dataset import Dataset
from fedapp.data.datasets import incomplete, load_dataset

CINIC = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
WNIDS = [f"n{number:08d}" for number in range(200)]


pytestmark = pytest.mark.usefixtures("cache")


def paint(path: Path, side: int | tuple[int, int], colour: int) -> None:
    """Write an image of one colour, told apart by its red value."""
    path.parent.mkdir(parents=True, exist_ok=True)
    size = (side, side) if isinstance(side, int) else side
    Image.new("RGB", size, (colour, 0, 0)).save(path, quality=95)


@pytest.fixture
def cinic(tmp_path) -> Path:
    root = tmp_path / "data" / "CINIC-10"
    for label, name in enumerate(CINIC):
        for split, count in (("train", 2), ("valid", 1), ("test", 1)):
            for index in range(count):
                paint(root / split / name / f"cifar10-{split}-{index}.png", 32, 10 * label + index)
    return root


@pytest.fixture
def tiny(tmp_path) -> Path:
    root = tmp_path / "data" / "tiny-imagenet-200"
    lines = []
    for label, wnid in enumerate(WNIDS):
        paint(root / "train" / wnid / "images" / f"{wnid}_0.JPEG", 64, label)
        if label % 20 == 0:
            paint(root / "val" / "images" / f"val_{label}.JPEG", 64, label + 5)
            lines.append(f"val_{label}.JPEG\t{wnid}\t0\t32\t44\t62\n")
    (root / "val" / "val_annotations.txt").write_text("".join(lines))
    (root / "wnids.txt").write_text("\n".join(reversed(WNIDS)))
    (root / "words.txt").write_text("n00000000\tentity\n")
    return root


@pytest.fixture
def flowers(tmp_path) -> Path:
    root = tmp_path / "data" / "flowers-102"
    numbers = np.arange(1, 307)
    for number in numbers:
        paint(root / "jpg" / f"image_{number:05d}.jpg", (80, 70), int(number) // 2)
    savemat(root / "imagelabels.mat", {"labels": (numbers % 102 + 1)[None]})
    ids = {"trnid": numbers[:102], "valid": numbers[102:204], "tstid": numbers[:203:-1]}
    savemat(root / "setid.mat", {key: value[None] for key, value in ids.items()})
    return root


def reds(images: np.ndarray) -> list[int]:
    return images[:, 0, 0, 0].tolist()


def load(root: Path, name: str) -> Dataset:
    return load_dataset(name, str(root.parent))


def test_missing_images_are_counted(cinic):
    data = load(cinic, "cinic10")
    assert incomplete(data, pooled=False) == (
        "'cinic10' has 90,000 images to divide, but this copy has 20"
    )
    assert incomplete(data.pooled(), pooled=True).endswith("180,000 images to divide, but this "
                                                           "copy has 30")  # fmt: skip
    assert incomplete(load_dataset("digits"), pooled=False) == ""


def test_cinic_trains_on_train_and_tests_on_test(cinic):
    data = load(cinic, "cinic10")
    assert data.classes == tuple(CINIC)
    assert data.train_images.shape == (20, 32, 32, 3)
    assert reds(data.train_images) == [10 * c + i for c in range(10) for i in (0, 1)]
    assert data.train_labels.tolist() == [c for c in range(10) for _ in (0, 1)]
    assert reds(data.test_images) == [10 * c for c in range(10)]
    assert data.mean == (0.4789, 0.4723, 0.4305)
    assert np.array_equal(load_dataset("cinic10", str(cinic)).train_images, data.train_images)


def test_tiny_imagenet_takes_its_validation_images_for_the_test(tiny):
    data = load(tiny, "tiny-imagenet")
    assert data.classes == tuple(WNIDS)
    assert data.train_images.shape == (200, 64, 64, 3)
    assert np.abs(np.array(reds(data.train_images)) - np.arange(200)).max() <= 2  # JPEG
    assert data.test_labels.tolist() == list(range(0, 200, 20))
    assert np.abs(np.array(reds(data.test_images)) - np.arange(5, 205, 20)).max() <= 2
    assert data.mean[0] == pytest.approx(99.5 / 255, abs=0.01)
    pool = data.pooled()
    assert len(pool.train_images) == len(pool.test_images) == 200


def test_flowers_are_scaled_and_split_as_published(flowers):
    data = load(flowers, "flowers102")
    assert data.num_classes == 102
    assert data.train_images.shape == (204, 64, 64, 3)
    assert data.test_images.shape == (102, 64, 64, 3)
    assert data.train_labels[:3].tolist() == [1, 2, 3]
    assert data.test_labels[0] == 306 % 102
    assert abs(reds(data.test_images)[0] - 306 // 2) <= 2
    pool = data.pooled()
    assert len(pool.train_images) == 306
    assert reds(pool.train_images[np.array([250, 3])])[1] == reds(data.train_images)[3]


def test_a_file_added_or_a_list_changed_is_noticed(cinic, tiny):
    assert len(load(cinic, "cinic10").train_labels) == 20
    paint(cinic / "train" / "bird" / "new.png", 32, 1)
    assert len(load(cinic, "cinic10").train_labels) == 21
    assert len(load(tiny, "tiny-imagenet").train_labels) == 200
    paint(tiny / "train" / WNIDS[3] / "images" / "new.JPEG", 64, 1)
    assert len(load(tiny, "tiny-imagenet").train_labels) == 201


def cut(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[:50])
    return path


def replaced(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def removed(path: Path) -> Path:
    path.unlink()
    return path


def resized(path: Path) -> Path:
    paint(path, 48, 1)
    return path


Spoil = Callable[[Path], Path]


def without_test_ids(path: Path) -> Path:
    savemat(path, {"trnid": [[1]], "valid": [[2]], "tstid": np.zeros((1, 0))})
    return path


CASES: list[tuple[str, Spoil, str]] = [
    ("cinic", lambda r: cut(r / "train/cat/cifar10-train-0.png"), "cannot read image {path}"),
    (
        "cinic",
        lambda r: resized(r / "test/cat/cifar10-test-0.png"),
        "{path} is 48x48 and not 32x32",
    ),
    (
        "cinic",
        lambda r: removed(r / "test/cat/cifar10-test-0.png").parent,
        ".png, .webp, .bmp, .tif, .tiff) in class folder {path}",
    ),
    (
        "cinic",
        lambda r: (r / "test/cat").rename(r / "test/zebra").parent / "cat",
        "cannot read class folder {path}: No such file",
    ),
    ("tiny", lambda r: cut(r / "val/images/val_20.JPEG"), "cannot read image {path}"),
    ("tiny", lambda r: removed(r / "val/images/val_20.JPEG"), "cannot read image {path}"),
    (
        "tiny",
        lambda r: replaced(r / "val/val_annotations.txt", "val_0.JPEG\tn99\t0\n"),
        "data file {path} is damaged or not what its name says: line 1 names no class",
    ),
    ("tiny", lambda r: replaced(r / "val/val_annotations.txt", ""), "{path} is damaged"),
    (
        "tiny",
        lambda r: (
            replaced(r / "wnids.txt", "n00000000\nn00000020") and r / "val/val_annotations.txt"
        ),
        "{path} is damaged or not what its name says: line 3 names no class",
    ),
    ("flowers", lambda r: cut(r / "setid.mat"), "{path} is damaged"),
    ("flowers", lambda r: replaced(r / "imagelabels.mat", "<html>"), "{path} is damaged"),
    ("flowers", lambda r: without_test_ids(r / "setid.mat"), "image ids must be in 1..306"),
    ("flowers", lambda r: removed(r / "jpg/image_00007.jpg"), "cannot read image {path}"),
]


@pytest.mark.parametrize(("name", "spoil", "message"), CASES)
def test_an_offending_file_is_named(request, name, spoil, message):
    root = request.getfixturevalue(name)
    path = spoil(root)
    dataset = {"cinic": "cinic10", "tiny": "tiny-imagenet", "flowers": "flowers102"}[name]
    with pytest.raises(UserError) as error:
        load(root, dataset)
    assert message.format(path=path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_data_set_with_too_few_classes_is_refused(cinic):
    for split in ("train", "test"):
        (cinic / split / "truck").rename(cinic / f"truck-{split}")
    with pytest.raises(UserError, match="do not name 10 classes"):
        load(cinic, "cinic10")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "cinic10",
            r"'cinic10' is not in .*CINIC-10 \(there is no .*\); .*; it cannot be down",
        ),
        ("tiny-imagenet", "'tiny-imagenet' is not in .*tiny-imagenet-200 .*not be downloaded"),
        ("flowers102", "'flowers102' is not in .*flowers-102 .* or download it .download=true; "),
    ],
)
def test_an_absent_data_set_is_looked_for_at_a_named_place(tmp_path, name, words):
    for download in (False, name != "flowers102"):
        with pytest.raises(UserError, match=words):
            load_dataset(name, str(tmp_path / "nowhere"), download)
