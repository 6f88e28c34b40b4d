"""A download that a killed process has left."""

from pathlib import Path

import pytest
from test_datasets import write_cifar

from fedapp.core.errors import UserError
from fedapp.data.datasets import load_dataset

pytestmark = pytest.mark.usefixtures("cache")


def test_what_a_killed_download_has_left_is_neither_read_nor_kept(tmp_path, monkeypatch):
    import torchvision.datasets

    root = tmp_path / "data"

    def killed(folder: str, download: bool) -> None:
        write_cifar(Path(folder))
        (root / "cifar-10-batches-py" / "test_batch").write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(torchvision.datasets, "CIFAR10", killed)
    with pytest.raises(KeyboardInterrupt):
        load_dataset("cifar10", str(root), download=True)
    with pytest.raises(UserError, match=r"download of 'cifar10' to .* has not ended: wait for the"):
        load_dataset("cifar10", str(root))

    def whole(folder: str, download: bool) -> None:
        assert not (root / "cifar-10-batches-py").exists()
        write_cifar(Path(folder))

    monkeypatch.setattr(torchvision.datasets, "CIFAR10", whole)
    assert load_dataset("cifar10", str(root), download=True).num_classes == 10
    assert load_dataset("cifar10", str(root)).num_classes == 10
