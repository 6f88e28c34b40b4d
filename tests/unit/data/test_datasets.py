"""Data sets are read from small files in the formats they are published in, sound and broken."""

import gzip
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest

from fedapp.core.errors import UserError
from fedapp.data.datasets import DATASETS, load_dataset
from fedapp.data.readers.stacking import channel_statistics

pytestmark = pytest.mark.usefixtures("cache")


def pixels(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def write_cifar(root: Path, classes: int = 10) -> dict[str, np.ndarray]:
    """Write tiny CIFAR-10 or CIFAR-100 files; return the pixel rows [4, 3072] by file name."""
    ten = classes == 10
    folder = root / ("cifar-10-batches-py" if ten else "cifar-100-python")
    folder.mkdir(parents=True)
    names = [f"data_batch_{part}" for part in range(1, 6)] + ["test_batch"]
    rows = {}
    for seed, name in enumerate(names if ten else ["train", "test"]):
        rows[name] = pixels((4, 3072), seed)
        labels = [seed, 1, 2, classes - 1]
        content = {
            "labels" if ten else "fine_labels": labels,
            "data": rows[name],
            "batch_label": "",
        }
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
    meta = {"label_names" if ten else "fine_label_names": [f"class {c}" for c in range(classes)]}
    (folder / ("batches.meta" if ten else "meta")).write_bytes(pickle.dumps(meta, protocol=2))
    return rows


def idx(array: np.ndarray) -> bytes:
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.tobytes()


def write_mnist(folder: Path, compressed: bool = True) -> dict[str, np.ndarray]:
    folder.mkdir(parents=True)
    arrays = {}
    for seed, (split, count) in enumerate({"train": 12, "t10k": 10}.items()):
        arrays[f"{split}-images-idx3-ubyte"] = pixels((count, 28, 28), seed)
        arrays[f"{split}-labels-idx1-ubyte"] = np.arange(count, dtype=np.uint8) % 10
    for name, array in arrays.items():
        content = idx(array)
        path = folder / (f"{name}.gz" if compressed else name)
        path.write_bytes(gzip.compress(content) if compressed else content)
    return arrays


def test_digits_are_split_by_class_and_normalised_by_their_own_statistics():
    data = load_dataset("digits")
    assert (data.num_classes, data.channels, data.image_size) == (10, 1, 8)
    assert data.train_images.shape == (1438, 8, 8, 1)
    assert data.test_images.shape == (359, 8, 8, 1)
    assert data.train_images.dtype == np.uint8
    assert data.train_images.max() == 255
    train, test = np.bincount(data.train_labels), np.bincount(data.test_labels)
    assert (np.abs(test - (train + test) / 5) <= 0.5).all()
    mean, std = channel_statistics(data.train_images)
    assert data.mean == pytest.approx(mean, abs=1e-4)
    assert data.std == pytest.approx(std, abs=1e-4)


@pytest.mark.parametrize(
    ("name", "classes"),
    [("images", ""), ("images", "cat dog"), ("cifar10", ""), ("cinic10", ""), ("imagenet100", "")],
)
def test_a_folder_that_may_not_be_entered_is_one_sentence(tmp_path, monkeypatch, name, classes):
    def denied(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_dir", denied)
    monkeypatch.setattr(Path, "is_file", denied)
    words = f"cannot read dataset '{name}' in data-dir {tmp_path}: .* Permission denied: .*; set"
    with pytest.raises(UserError, match=words):
        load_dataset(name, str(tmp_path), classes=classes)


def test_a_home_folder_of_nobody_is_one_sentence(tmp_path, monkeypatch):
    nobody = "is '~no-such-user/x' but there is no such home folder; write the whole path"
    with pytest.raises(UserError, match=f"data-dir {nobody}"):
        load_dataset("images", "~no-such-user/x")
    monkeypatch.setenv("FEDAPP_CACHE", "~no-such-user/x")
    with pytest.raises(UserError, match=f"FEDAPP_CACHE {nobody}"):
        load_dataset("digits")


def test_a_class_list_in_the_home_folder_of_nobody_is_one_sentence(tmp_path):
    for split in ("train", "val"):
        (tmp_path / split).mkdir()
    with pytest.raises(UserError, match="class-list is '~no-such-user/x' but there is no such"):
        load_dataset("imagenet100", str(tmp_path), class_list="~no-such-user/x")


def test_digits_split_loses_and_repeats_no_image():
    from sklearn.datasets import load_digits

    data = load_dataset("digits")
    ours = np.concatenate([data.train_images, data.test_images]).reshape(-1, 64)
    original = np.rint(load_digits().images.reshape(-1, 64) * 255 / 16)
    assert sorted(map(tuple, ours)) == sorted(map(tuple, original))


@pytest.mark.parametrize("classes", [10, 100])
def test_cifar_files_become_images_in_their_order(tmp_path, classes):
    rows = write_cifar(tmp_path / "data", classes)
    data = load_dataset(f"cifar{classes}", str(tmp_path / "data"))
    assert data.num_classes == classes == DATASETS[data.name].num_classes
    assert data.classes[3] == "class 3"
    expected = np.concatenate([row for name, row in rows.items() if not name.startswith("test")])
    # A CIFAR row holds 1024 red, then green, then blue values, each row by row.
    assert np.array_equal(data.train_images[..., 0].reshape(-1, 1024), expected[:, :1024])
    assert np.array_equal(data.train_images[..., 2].reshape(-1, 1024), expected[:, 2048:])
    assert data.train_labels[:4].tolist() == [0, 1, 2, classes - 1]
    assert data.test_images.shape == (4, 32, 32, 3)
    assert data.train_labels.dtype == np.int64


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_idx_files_are_read_plain_and_compressed(tmp_path, name, compressed):
    folder = {"mnist": "MNIST/raw", "fashion-mnist": "FashionMNIST/raw"}[name]
    arrays = write_mnist(tmp_path / folder, compressed)
    data = load_dataset(name, str(tmp_path))
    assert np.array_equal(data.train_images[..., 0], arrays["train-images-idx3-ubyte"])
    assert np.array_equal(data.test_labels, arrays["t10k-labels-idx1-ubyte"])
    assert (data.num_classes, data.channels, data.image_size) == (10, 1, 28)


def test_data_dir_may_be_the_folder_of_the_files_itself(tmp_path):
    write_mnist(tmp_path / "MNIST" / "raw")
    inside = load_dataset("mnist", str(tmp_path / "MNIST" / "raw"))
    assert np.array_equal(inside.train_images, load_dataset("mnist", str(tmp_path)).train_images)


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "mnist", "fashion-mnist"])
def test_absent_files_are_looked_for_at_a_named_place(tmp_path, name):
    folder = tmp_path / "nowhere" / DATASETS[name].layout.rstrip("/")
    with pytest.raises(UserError) as error:
        load_dataset(name, str(tmp_path / "nowhere"))
    assert f"'{name}' is not in {folder}" in str(error.value)
    assert "download=true" in str(error.value)


def test_without_data_dir_files_are_looked_for_in_the_cache_folder(cache):
    write_mnist(cache / "datasets" / "MNIST" / "raw")
    assert load_dataset("mnist").train_images.shape == (12, 28, 28, 1)


def test_an_unknown_dataset_names_the_nearest_ones():
    with pytest.raises(UserError, match="dataset 'cifar' does not exist; did you mean 'cifar10'"):
        load_dataset("cifar")


def test_download_fetches_what_is_absent_once(tmp_path, monkeypatch):
    import torchvision.datasets

    calls = []

    def fetch(root: str, download: bool) -> None:
        calls.append((root, download))
        write_cifar(Path(root))

    monkeypatch.setattr(torchvision.datasets, "CIFAR10", fetch)
    for _ in range(2):
        data = load_dataset("cifar10", str(tmp_path / "data"), download=True)
    assert calls == [(str(tmp_path / "data" / ".cifar10.download"), True)]
    assert data.num_classes == 10


def test_a_failed_download_is_a_sentence(tmp_path, monkeypatch):
    import torchvision.datasets

    def fetch(root: str, download: bool) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(torchvision.datasets, "MNIST", fetch)
    with pytest.raises(
        UserError, match=f"download dataset 'mnist' to {tmp_path}: no route to host"
    ):
        load_dataset("mnist", str(tmp_path), download=True)


def python2_batch(rows: np.ndarray, label: int) -> bytes:
    """Pickle a batch as Python 2 and numpy 1 wrote the published files: byte strings throughout."""
    shape = b"(K\x01K" + bytes([len(rows)]) + b"M\x00\x0c\x86"
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R" + shape
        + b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R"
        + b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        + b"\x89T" + struct.pack("<I", rows.size) + rows.tobytes() + b"tb"
    )  # fmt: skip
    labels = b"](" + (b"K" + bytes([label])) * len(rows) + b"e"
    return b"\x80\x02}(U\x04data" + array + b"U\x06labels" + labels + b"u."


def test_batches_written_by_python_2_are_read(tmp_path):
    write_cifar(tmp_path)
    rows = pixels((3, 3072), 9)
    (tmp_path / "cifar-10-batches-py" / "test_batch").write_bytes(python2_batch(rows, 7))
    data = load_dataset("cifar10", str(tmp_path))
    assert np.array_equal(data.test_images[..., 1].reshape(3, 1024), rows[:, 1024:2048])
    assert data.test_labels.tolist() == [7, 7, 7]


class Exploit:
    """Pickles to a call of print."""

    def __reduce__(self):
        return print, ("code from a data file was run",)


def cifar_batch(rows: int, labels: object) -> bytes:
    return pickle.dumps({"data": pixels((rows, 3072), 0), "labels": labels})


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("data_batch_2", b""),
        ("data_batch_2", b"<html>not found</html>"),
        ("test_batch", cifar_batch(4, [1, 2, 3, 4])[:5000]),
        ("test_batch", cifar_batch(4, [1, 2, 3])),
        ("test_batch", cifar_batch(4, None)),
        ("test_batch", cifar_batch(4, [1, 2, "cat", 3])),
        ("test_batch", cifar_batch(4, [1, None, 2, 3])),
        ("data_batch_1", pickle.dumps([1, 2])),
        ("data_batch_1", pickle.dumps({"data": np.zeros((1, 3072)), "labels": [1]})),
        ("data_batch_1", pickle.dumps({"data": Exploit(), "labels": [1]})),
        ("batches.meta", pickle.dumps({"label_names": 3})),
    ],
)
def test_a_broken_cifar_file_is_named(tmp_path, capsys, name, content):
    write_cifar(tmp_path)
    path = tmp_path / "cifar-10-batches-py" / name
    path.write_bytes(content)
    with pytest.raises(UserError, match=f"data file {path} is damaged"):
        load_dataset("cifar10", str(tmp_path))
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("train-images-idx3-ubyte.gz", b""),
        ("train-images-idx3-ubyte.gz", b"no gzip"),
        ("train-images-idx3-ubyte.gz", gzip.compress(idx(pixels((12, 28, 28), 0)), mtime=0)[:-500]),
        ("train-images-idx3-ubyte.gz", gzip.compress(idx(pixels((12, 28, 28), 0))[:-5], mtime=0)),
        ("train-images-idx3-ubyte.gz", gzip.compress(idx(pixels((12,), 0)), mtime=0)),
        ("t10k-images-idx3-ubyte.gz", gzip.compress(bytes([0, 0, 8, 3, 255]), mtime=0)),
        ("t10k-labels-idx1-ubyte.gz", gzip.compress(idx(pixels((9,), 0)), mtime=0)),
    ],
)
def test_a_broken_idx_file_is_named(tmp_path, name, content):
    write_mnist(tmp_path / "MNIST" / "raw")
    path = tmp_path / "MNIST" / "raw" / name
    path.write_bytes(content)
    with pytest.raises(UserError, match=f"data file {path} is damaged"):
        load_dataset("mnist", str(tmp_path))


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("train-images-idx3-ubyte.gz", pixels((12, 20, 20), 0), r"shape \[12, 20, 20, 1\], but"),
        ("train-labels-idx1-ubyte.gz", np.full(12, 10, np.uint8), r"labels .* not all in 0\.\.9"),
    ],
)
def test_files_of_another_data_set_are_refused(tmp_path, name, array, message):
    write_mnist(tmp_path / "MNIST" / "raw")
    (tmp_path / "MNIST" / "raw" / name).write_bytes(gzip.compress(idx(array)))
    with pytest.raises(UserError, match=message):
        load_dataset("mnist", str(tmp_path))


def test_rows_count_the_images_that_are_read_and_pooled():
    digits, info = load_dataset("digits"), DATASETS["digits"]
    assert (len(digits.train_labels), len(digits.test_labels)) == (1438, 359)
    assert (info.train_images, info.test_images) == (1438, 359)
    assert info.pooled_images == len(digits.pooled().train_labels)
    assert DATASETS["tiny-imagenet"].pooled_images == DATASETS["tiny-imagenet"].train_images
    assert DATASETS["images"].pooled_images == 0
