"""Data sets of the hub in one data-dir: each in a folder of its own, and none taken for another."""

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fedapp.core.errors import UserError
from fedapp.data.datasets import load_dataset
from fedapp.data.readers import hub

PHOTOS, CLOTHES = "hub:uoft-cs/cifar10", "hub:zalando-datasets/fashion_mnist"
FOLDERS = {PHOTOS: "uoft-cs--cifar10", CLOTHES: "zalando-datasets--fashion_mnist"}


@pytest.fixture(autouse=True)
def decoded(tmp_path, monkeypatch) -> list[str]:
    """Replace the hub and both libraries: a data set is one file, and its one class its content.

    Returns the contents decoded so far.
    """
    contents: list[str] = []

    def snapshot_download(name, *, revision, local_dir, **options) -> None:
        place(Path(local_dir), f"hub:{name}")

    def decode(root: Path, subset: str, origin: hub.Origin) -> dict[str, np.ndarray]:
        contents.append(" ".join(path.read_text() for path in sorted(root.rglob("*.parquet"))))
        arrays = {"classes": np.array(contents[-1:]), "mean": np.zeros(1), "std": np.ones(1)}
        for split in ("train", "test"):
            arrays[f"{split}_images"] = np.zeros((1, 8, 8, 1), np.uint8)
            arrays[f"{split}_labels"] = np.zeros(1, np.int64)
        return arrays

    library = SimpleNamespace(
        snapshot_download=snapshot_download, list_repo_files=lambda *_, **__: ["a.parquet"]
    )
    monkeypatch.setenv("FEDAPP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "huggingface_hub", library)
    monkeypatch.setattr(hub, "_check_reachable", lambda name: None)
    monkeypatch.setattr(hub, "decode", decode)
    return contents


def place(folder: Path, content: str) -> Path:
    """Put a copy of a data set into a folder."""
    (folder / "data").mkdir(parents=True, exist_ok=True)
    (folder / "data" / "train.parquet").write_text(content)
    return folder


def content(name: str, data_dir: Path, *, download: bool = False) -> str:
    return load_dataset(name, str(data_dir), download).classes[0]


def test_one_folder_holds_several_downloaded_sets(tmp_path, decoded):
    data = tmp_path / "data"
    for _ in range(2):
        assert content(PHOTOS, data, download=True) == PHOTOS
        assert content(CLOTHES, data, download=True) == CLOTHES
    assert [content(name, data) for name in FOLDERS] == [PHOTOS, CLOTHES]
    assert sorted(path.name for path in data.iterdir() if path.is_dir()) == [*FOLDERS.values()]
    assert decoded == [PHOTOS, CLOTHES]  # each once: the cache keeps both
    with pytest.raises(UserError, match=rf"is not in {data}/some--one; set data-dir to a copy"):
        content("hub:some/one", data)


def test_a_copy_of_ones_own_is_the_folder_itself_or_in_one_of_the_sets_name(tmp_path):
    for download in (False, True):
        assert content(PHOTOS, place(tmp_path / "own", "mine"), download=download) == "mine"
    place(tmp_path / "all" / FOLDERS[PHOTOS], "mine")
    assert content(PHOTOS, tmp_path / "all") == "mine"
    assert content(PHOTOS, tmp_path / "all" / FOLDERS[PHOTOS]) == "mine"
    with pytest.raises(UserError, match=rf"is not in {tmp_path}/all/{FOLDERS[CLOTHES]}; "):
        content(CLOTHES, tmp_path / "all")


def test_a_copy_beside_folders_of_other_sets_is_not_read_with_them(tmp_path):
    data = tmp_path / "data"
    content(PHOTOS, data, download=True)
    (data / FOLDERS[PHOTOS]).rename(data / "renamed")
    place(data, "mine")
    with pytest.raises(UserError, match=f"is not in {data / FOLDERS[CLOTHES]}; "):
        content(CLOTHES, data)
    assert content(CLOTHES, data, download=True) == CLOTHES


def test_a_folder_marked_as_another_set_is_refused(tmp_path):
    data = tmp_path / "data"
    content(PHOTOS, data, download=True)
    marked = (data / FOLDERS[PHOTOS]).rename(data / FOLDERS[CLOTHES])
    for data_dir in (data, marked):
        for download in (False, True):
            with pytest.raises(UserError) as error:
                content(CLOTHES, data_dir, download=download)
            assert str(error.value) == (
                f"{marked} holds '{PHOTOS}', as its file .hub-name says, not '{CLOTHES}'; set "
                "data-dir to a folder without that set, or to a copy of the right Parquet files"
            )
    assert content(PHOTOS, marked.rename(tmp_path / "moved"), download=True) == PHOTOS
