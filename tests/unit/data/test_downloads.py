"""Half of a download is never read, and what a user has copied is never replaced."""

from pathlib import Path

import pytest
import torchvision.datasets
from test_datasets import write_cifar

from fedapp.core.errors import UserError
from fedapp.data.datasets import load_dataset

pytestmark = pytest.mark.usefixtures("cache")
FOLDER = "cifar-10-batches-py"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("no route to host")])
def test_half_of_a_download_is_not_read_and_is_fetched_again(tmp_path, monkeypatch, error):
    root = tmp_path / "data"

    def ended_early(folder: str, download: bool) -> None:
        write_cifar(Path(folder))
        (Path(folder) / FOLDER / "test_batch").write_bytes(b"half")
        raise error

    monkeypatch.setattr(torchvision.datasets, "CIFAR10", ended_early)
    with pytest.raises((KeyboardInterrupt, UserError)):
        load_dataset("cifar10", str(root), download=True)
    with pytest.raises(UserError, match=r"'cifar10' is not in .*; set data-dir to the folder"):
        load_dataset("cifar10", str(root))

    def whole(folder: str, download: bool) -> None:
        assert not list(Path(folder).iterdir())
        write_cifar(Path(folder))

    monkeypatch.setattr(torchvision.datasets, "CIFAR10", whole)
    assert load_dataset("cifar10", str(root), download=True).num_classes == 10
    assert not list(root.glob(".*.download"))


def test_a_copy_that_comes_after_a_failed_download_is_used(tmp_path, monkeypatch):
    def failing(folder: str, download: bool) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(torchvision.datasets, "CIFAR10", failing)
    with pytest.raises(UserError, match="no route to host"):
        load_dataset("cifar10", str(tmp_path), download=True)
    write_cifar(tmp_path)
    for download in (False, True):
        assert load_dataset("cifar10", str(tmp_path), download=download).num_classes == 10


def test_a_failed_download_is_one_line_that_says_what_else_to_do(tmp_path, monkeypatch):
    def failing(folder: str, download: bool) -> None:
        raise RuntimeError("Error downloading a:\nTried https://b, got:\nno network\n")

    monkeypatch.setattr(torchvision.datasets, "CIFAR10", failing)
    words = "a: Tried https://b, got: no network; without a network copy its folder cifar-10-batch"
    with pytest.raises(UserError, match=words) as refused:
        load_dataset("cifar10", str(tmp_path), download=True)
    assert "\n" not in str(refused.value)


def test_class_folders_are_named_as_the_data_set_that_reads_them(tmp_path):
    (tmp_path / "train" / "cat").mkdir(parents=True)
    with pytest.raises(UserError, match=r"\(for the class folders in .*train set dataset='images'"):
        load_dataset("cifar10", str(tmp_path))
