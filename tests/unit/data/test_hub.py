"""Data sets of the hub: copies of its Parquet files, decoded once, and every way to lack them."""

import io
import socket
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError
from fedapp.data.datasets import load_dataset, settings_name
from fedapp.data.readers import hub

NAME = "hub:someone/shapes"


pytestmark = pytest.mark.usefixtures("cache")


def png(seed: int, side: int = 8, mode: str = "RGB") -> bytes:
    shape = (side, side, 3) if mode == "RGB" else (side, side)
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape, np.uint8)).save(file, "PNG")
    return file.getvalue()


def rows(count: int, seed: int, **options) -> dict[str, list]:
    images = [{"bytes": png(seed + number, **options), "path": None} for number in range(count)]
    return {"img": images, "label": [number % 2 for number in range(count)]}


def deep() -> dict[str, object]:
    """An image of 16 bits per channel."""
    file = io.BytesIO()
    Image.fromarray(np.zeros((8, 8), np.uint16)).save(file, "PNG")
    return {"bytes": file.getvalue(), "path": None}


def write(root: Path, splits: dict[str, dict[str, list]], kind: str = "") -> Path:
    """Write a copy of a hub data set as the hub lays it out, with the real library.

    Labels are those of two named classes, or values of the type `kind`, which may be a list's.
    """
    datasets = pytest.importorskip("datasets")
    import pyarrow
    import pyarrow.parquet

    label = datasets.ClassLabel(names=["disc", "square"])
    if kind:
        value = datasets.Value(kind.removesuffix("s"))
        label = datasets.Sequence(value) if kind.endswith("s") else value
    schema = datasets.Features({"img": datasets.Image(), "label": label}).arrow_schema
    (root / "data").mkdir(parents=True)
    for split, content in splits.items():
        table = pyarrow.table(content, schema=schema)
        pyarrow.parquet.write_table(table, root / "data" / f"{split}-00000-of-00001.parquet")
    return root


@pytest.fixture
def copy(tmp_path) -> Path:
    return write(tmp_path / "shapes", {"train": rows(6, 0), "test": rows(3, 100)})


def test_a_copy_is_read_and_then_comes_from_the_cache_without_the_library(copy, monkeypatch):
    data = load_dataset(NAME, str(copy))
    assert data.classes == ("disc", "square")
    assert data.train_labels.tolist() == [0, 1, 0, 1, 0, 1]
    for number in range(3):
        photo = Image.open(io.BytesIO(png(100 + number)))
        assert np.array_equal(data.test_images[number], np.asarray(photo))
    assert data.mean == pytest.approx((data.train_images / 255).mean(axis=(0, 1, 2)))
    monkeypatch.setitem(sys.modules, "datasets", None)
    again = load_dataset(NAME, str(copy))
    assert np.array_equal(again.train_images, data.train_images)


def test_grey_images_keep_one_channel_and_validation_may_be_the_test(tmp_path):
    splits = {"train": rows(2, 0, mode="L"), "validation": rows(2, 9, mode="L")}
    data = load_dataset(NAME, str(write(tmp_path / "grey", splits)))
    assert data.train_images.shape == (2, 8, 8, 1)
    assert data.channels == len(data.mean) == 1


@pytest.mark.parametrize(
    ("splits", "words"),
    [
        ({"train": rows(2, 0)}, r"have the splits \['train'\], not train and test; set test-share"),
        (
            {"train": rows(2, 0), "test": rows(2, 0, side=9)},
            r"same size, but image 0 of test in .* is 9x9 and not 8x8",
        ),
        (
            {
                "train": {
                    "img": rows(1, 0)["img"] + rows(1, 0, side=9)["img"],
                    "label": [0, 1],
                },
                "test": rows(1, 0),
            },
            r"same size, but image 1 of train in .* is 9x9 and not 8x8",
        ),
        (
            {"train": rows(2, 0), "test": {"img": [None], "label": [0]}},
            r"image 0 of test in .* is missing: its row has none in the column 'img'",
        ),
        (
            {"train": {"img": [rows(1, 0)["img"][0], deep()], "label": [0, 1]}, "test": rows(1, 0)},
            r"image 1 of train in .* has more than 8 bits per channel",
        ),
        (
            {
                "train": {"img": [{"bytes": png(0)[:40], "path": None}], "label": [0]},
                "test": rows(1, 0),
            },
            "cannot read image 0 of train in .*",
        ),
    ],
)
def test_unfit_images_are_named(tmp_path, splits, words):
    root = write(tmp_path / "odd", splits)
    with pytest.raises(UserError, match=words):
        load_dataset(NAME, str(root))


def test_grey_and_coloured_images_become_coloured_ones(tmp_path):
    mixed = {"img": rows(1, 0)["img"] + rows(1, 1, mode="L")["img"], "label": [0, 1]}
    splits = {"train": rows(2, 9, mode="L"), "test": mixed}
    data = load_dataset(NAME, str(write(tmp_path / "mixed", splits)))
    assert data.train_images.shape == data.test_images.shape == (2, 8, 8, 3)
    grey = np.asarray(Image.open(io.BytesIO(png(1, mode="L"))))
    assert np.array_equal(data.test_images[1], np.repeat(grey[..., None], 3, axis=2))


@pytest.mark.parametrize(
    ("kind", "train", "test", "words"),
    [
        ("", [0, 1], [0, -1], "row 1 of test in .* has -1 .* 'label', .* from 0 to 1$"),
        ("", [0, None], [0, 1], "row 1 of train in .* has None in the column 'label'"),
        ("int64", [0, 3], [-1, 1], "row 0 of test in .* has -1 .*, whole numbers from 0 on$"),
        ("string", ["cat", "dog"], ["cat", "dog"], "row 0 of train in .* has 'cat' in the column"),
        ("float64", [0.0, 1.5], [0.0, 1.0], "row 0 of train in .* has 0.0 in the column"),
        ("int64s", [[0], [1]], [[0], [1]], r"row 0 of train in .* has \[0\] in the column"),
    ],
)
def test_a_column_without_labels_is_named(tmp_path, kind, train, test, words):
    splits = {"train": {**rows(2, 0), "label": train}, "test": {**rows(2, 9), "label": test}}
    with pytest.raises(UserError, match=words):
        load_dataset(NAME, str(write(tmp_path / "odd", splits, kind)))


def test_whole_numbers_without_names_are_their_own_names(tmp_path):
    splits = {"train": {**rows(2, 0), "label": [0, 2]}, "test": rows(2, 9)}
    data = load_dataset(NAME, str(write(tmp_path / "numbers", splits, "int64")))
    assert data.classes == ("0", "1", "2")
    assert data.train_labels.tolist() == [0, 2]


def test_a_truncated_file_is_a_sentence(copy):
    path = copy / "data" / "test-00000-of-00001.parquet"
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(UserError, match=f"cannot read the Parquet files in {copy}: ") as error:
        load_dataset(NAME, str(copy))
    assert "\n" not in str(error.value)


def test_absent_copies_are_looked_for_at_a_named_place(tmp_path, cache):
    with pytest.raises(UserError, match=f"is not in {tmp_path}/no/someone--shapes; set data-dir"):
        load_dataset(NAME, str(tmp_path / "no"))
    with pytest.raises(UserError, match=f"is not in {cache}/hub/someone--shapes; .*download=true"):
        load_dataset(NAME)


@pytest.mark.parametrize("name", ["hub:shapes", "hub:/x", "hub:a/b/c"])
def test_names_have_an_owner(name):
    with pytest.raises(UserError, match="must be hub:OWNER/NAME"):
        load_dataset(name)


def test_an_absent_library_is_named_with_its_extra(tmp_path, monkeypatch):
    (tmp_path / "x.parquet").touch()
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"the package 'datasets' .*pip install -e '\.\[hub\]'"):
        load_dataset(NAME, str(tmp_path))
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match="need the package 'huggingface_hub'"):
        load_dataset(NAME, download=True)


def the_hub(monkeypatch, snapshot_download, files: list[str]) -> None:
    """Replace the hub by a local port, and its library by one of a data set with these files."""

    def list_repo_files(name, *, repo_type, revision) -> list[str]:
        return files if revision is None else ["x.parquet"]

    server = socket.create_server(("127.0.0.1", 0))
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
    library = SimpleNamespace(
        snapshot_download=snapshot_download, list_repo_files=list_repo_files, server=server
    )
    monkeypatch.setitem(sys.modules, "huggingface_hub", library)


@pytest.mark.parametrize("listed", [["a.parquet", "b.parquet"], ["images.zip"]])
def test_an_interrupted_download_is_finished_before_its_files_are_read(cache, monkeypatch, listed):
    """The first file arrives and the process ends; later the rest comes."""
    root, source = cache / "hub" / "someone--shapes", None if len(listed) == 2 else hub.CONVERTED
    killed = True

    def snapshot_download(name, *, revision, local_dir, **options) -> None:
        if revision == source:
            (local_dir / "a.parquet").touch()
            if killed:
                raise KeyboardInterrupt
            (local_dir / "b.parquet").touch()

    the_hub(monkeypatch, snapshot_download, listed)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(KeyboardInterrupt):
        load_dataset(NAME, download=True)
    with pytest.raises(UserError, match=r"is not in .*shapes, but for a part; .*download=true"):
        load_dataset(NAME)
    killed = False
    with pytest.raises(UserError, match="need the package 'datasets'"):  # to read the files
        load_dataset(NAME, download=True)
    assert sorted(path.name for path in root.glob("[!.]*")) == ["a.parquet", "b.parquet"]
    with pytest.raises(UserError, match="need the package 'datasets'"):
        load_dataset(NAME)


def test_a_download_falls_back_to_the_hubs_conversion_and_failures_are_sentences(
    monkeypatch, cache
):
    asked = []

    def snapshot_download(name, *, revision, local_dir, **options) -> None:
        asked.append((name, revision, options["repo_type"], options["allow_patterns"]))
        if revision == hub.CONVERTED:
            (Path(local_dir) / "x.parquet").write_text("no Parquet")

    the_hub(monkeypatch, snapshot_download, ["README.md", "images.zip"])
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match="need the package 'datasets'"):
        load_dataset(NAME, download=True)
    files = ["*.parquet", "README.md"]
    assert asked == [
        ("someone/shapes", None, "dataset", files),
        ("someone/shapes", hub.CONVERTED, "dataset", files),
    ]

    def offline(name, **options) -> None:
        raise OSError("no route to host\nsee the documentation")

    the_hub(monkeypatch, offline, [])
    with pytest.raises(UserError, match=r"could not download 'hub:a/b' to .*: no route to host$"):
        load_dataset("hub:a/b", download=True)


def test_a_hub_that_cannot_be_reached_is_one_sentence(monkeypatch, cache):
    the_hub(monkeypatch, None, [])
    sys.modules["huggingface_hub"].server.close()
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("NO_PROXY", "localhost")  # names no proxy
    with pytest.raises(
        UserError, match=r"127\.0\.0\.1 cannot be reached .*; check the network, or"
    ):
        load_dataset("hub:a/b", download=True)


def test_the_papers_settings_know_hub_names():
    assert settings_name("hub:uoft-cs/cifar10") == "cifar10"
    assert settings_name("hub:zalando-datasets/fashion_mnist") == "fashion-mnist"
    assert settings_name("hub:ylecun/mnist:mnist") == "mnist"
    assert settings_name("cifar100") == "cifar100"
    config = parse_config({"method": "feddr+", "dataset": "hub:uoft-cs/cifar10"})
    assert (config.model, config.lr) == ("vgg11", 0.35)
