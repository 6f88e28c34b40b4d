"""Copies of the hub's own conversion to Parquet, and splits that cannot be used."""

import shutil
from pathlib import Path

import pytest
from test_hub import NAME, rows, write

from fedapp.core.errors import UserError
from fedapp.data.datasets import load_dataset
from fedapp.data.readers import hub_rows

pytestmark = pytest.mark.usefixtures("cache")


README = "---\nconfigs:\n- config_name: x\n  data_files: train/**\n---\n"


def convert(root: Path, *splits: str) -> None:
    """Lay a copy of the hub's conversion out: SUBSET/SPLIT/0000.parquet, and the set's README."""
    whole = write(root / "whole", {"train": rows(4, 0), "test": rows(2, 50)})
    for split in splits:
        kind = split.rpartition("/")[2].removeprefix("partial-")
        (root / split).mkdir(parents=True)
        shutil.copy(
            whole / "data" / f"{kind}-00000-of-00001.parquet", root / split / "0000.parquet"
        )
    shutil.rmtree(whole)
    (root / "README.md").write_text(README)
    (root / hub_rows.CONVERTED_MARK).touch()


def test_of_the_hubs_conversion_one_subset_is_read(tmp_path):
    root = tmp_path / "sizes"
    convert(root, "small/train", "small/test", "large/train", "large/test")
    with pytest.raises(UserError, match="have 2 subsets: name one of large, small, as hub:OWNER"):
        load_dataset(NAME, str(root))
    with pytest.raises(UserError, match="have no subset 'huge': name one of large, small"):
        load_dataset(f"{NAME}:huge", str(root))
    assert len(load_dataset(f"{NAME}:small", str(root)).train_images) == 4


def test_a_conversion_of_a_part_is_refused(tmp_path):
    root = tmp_path / "part"
    convert(root, "default/partial-train", "default/test")
    with pytest.raises(UserError, match="has converted only the first 5 GB of train to Parquet"):
        load_dataset(NAME, str(root))


def test_test_images_without_labels_are_no_test(tmp_path):
    splits = {"train": rows(4, 0), "validation": rows(2, 9), "test": rows(3, 30)}
    splits["test"]["label"] = [-1] * 3
    data = load_dataset(NAME, str(write(tmp_path / "competition", splits, "int64")))
    assert len(data.test_images) == 2


def test_a_copy_on_the_hub_pools_as_the_original(tmp_path, monkeypatch):
    root = str(write(tmp_path / "tiny", {"train": rows(4, 0), "test": rows(2, 9)}))
    assert load_dataset("hub:someone/shapes", root).pools_test
    assert not load_dataset("hub:zh-plus/tiny-imagenet", root).pools_test
