"""The cache of decoded data: used when it can be, renewed when it must be, never in the way."""

import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedapp.core.arrays import Arrays
from fedapp.core.paths import cache_folder
from fedapp.data.datasets import load_dataset
from fedapp.data.readers.cache import cached_arrays, file_version

REPORT = """
import shutil
import sys
from fedapp.data.datasets import load_dataset
for arguments in (["digits"], ["images", sys.argv[1]]):
    data = load_dataset(*arguments)
    print(int(data.train_images.sum()), len(data.test_labels))
print({"PIL", "torchvision", "sklearn"} & set(sys.modules))
"""


pytestmark = pytest.mark.usefixtures("cache")


class Decoder:
    """Counts how often it is asked."""

    def __init__(self, value: int = 1, seconds: float = 0.0) -> None:
        self.value, self.seconds, self.calls = value, seconds, 0

    def __call__(self) -> Arrays:
        self.calls += 1
        time.sleep(self.seconds)
        return {"images": np.full((3, 2), self.value, np.uint8), "names": np.array(["a", "bc"])}


def test_the_second_time_nothing_is_decoded():
    decode = Decoder()
    first = cached_arrays("set", "/data", ["a/1/2"], decode)
    second = cached_arrays("set", "/data", ["a/1/2"], decode)
    assert decode.calls == 1
    for arrays in (first, second):
        assert np.array_equal(arrays["images"], np.ones((3, 2)))
        assert arrays["names"].tolist() == ["a", "bc"]


@pytest.mark.parametrize(
    "other", [("set2", "/data", ["a"]), ("set", "/other", ["a"]), ("set", "/data", ["b"])]
)
def test_another_name_source_or_version_is_decoded_anew(other):
    cached_arrays("set", "/data", ["a"], Decoder(1))
    assert cached_arrays(*other, Decoder(2))["images"][0, 0] == 2


def test_a_new_version_replaces_the_old_one_of_the_same_source_only(cache):
    cached_arrays("set", "/other", ["a"], Decoder())
    for version in ("a", "b", "c"):
        cached_arrays("set", "/data", [version], Decoder())
    assert len([path for path in cache.iterdir() if path.is_dir()]) == 2


def test_changing_a_mapped_array_changes_no_file():
    cached_arrays("set", "/data", ["a"], Decoder())["images"][:] = 9
    assert cached_arrays("set", "/data", ["a"], Decoder())["images"].max() == 1


def test_an_empty_file_is_decoded_anew(cache):
    decode = Decoder()
    cached_arrays("set", "/data", ["a/1/2"], decode)
    next(cache.rglob("images.npy")).write_bytes(b"")
    assert cached_arrays("set", "/data", ["a/1/2"], decode)["images"].sum() == 6
    assert decode.calls == 2


def test_a_damaged_entry_is_decoded_anew(cache):
    cached_arrays("set", "/data", ["a"], Decoder())
    [path] = cache.glob("*/images.npy")
    path.write_bytes(path.read_bytes()[:-1])
    decode = Decoder(5)
    assert cached_arrays("set", "/data", ["a"], decode)["images"].min() == 5
    assert cached_arrays("set", "/data", ["a"], decode)["images"].min() == 5
    assert decode.calls == 1


def test_an_entry_without_all_of_its_arrays_is_decoded_anew(cache):
    cached_arrays("set", "/data", ["a"], Decoder())
    [path] = cache.glob("*/names.npy")
    path.unlink()
    assert cached_arrays("set", "/data", ["a"], Decoder(5)).keys() == {"images", "names"}
    assert cached_arrays("set", "/data", ["a"], Decoder(7))["images"].min() == 5


def test_an_interrupted_removal_leaves_no_part_of_an_entry(cache, monkeypatch):
    cached_arrays("set", "/data", ["a"], Decoder())
    [entry] = (path for path in cache.iterdir() if path.is_dir())

    def killed(path: Path, **options: object) -> None:
        if path.exists():
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            cached_arrays("set", "/data", ["b"], Decoder())
    assert not entry.exists()
    cached_arrays("set", "/data", ["c"], Decoder())
    assert len([path for path in cache.iterdir() if path.is_dir()]) == 1


def test_without_a_writable_folder_data_are_decoded_in_memory(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("FEDAPP_CACHE", str(tmp_path / "file" / "cache"))
    decode = Decoder()
    for _ in range(2):
        assert cached_arrays("set", "/data", ["a"], decode)["images"].shape == (3, 2)
    assert decode.calls == 2


def test_a_failing_write_leaves_nothing_behind(cache, monkeypatch):
    def full_disk(*args: object, **kwargs: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(np, "save", full_disk)
    assert cached_arrays("set", "/data", ["a"], Decoder())["images"].shape == (3, 2)
    assert not [path for path in cache.iterdir() if path.is_dir()]


def test_parallel_users_decode_once():
    decode = Decoder(seconds=0.2)
    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(cached_arrays, "set", "/d", ["a"], decode) for _ in range(4)]
        results = [job.result()["images"].sum() for job in jobs]
    assert results == [6] * 4
    assert decode.calls == 1


def test_errors_of_decoding_pass_through_and_are_not_kept():
    def fail() -> Arrays:
        raise OSError("broken data")

    with pytest.raises(OSError, match="broken data"):
        cached_arrays("set", "/data", ["a"], fail)
    assert cached_arrays("set", "/data", ["a"], Decoder())["images"].shape == (3, 2)


def test_the_folder_follows_the_environment(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    monkeypatch.setenv("HOME", "/users/someone")
    monkeypatch.setenv("FEDAPP_CACHE", "/own")
    assert cache_folder() == Path("/own")
    monkeypatch.delenv("FEDAPP_CACHE")
    assert cache_folder() == Path("/somewhere/fedapp")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path("/users/someone/.cache/fedapp")


def test_a_changed_file_has_another_version(tmp_path):
    path = tmp_path / "a"
    path.write_text("one")
    versions = {file_version("a", path.stat())}
    os.utime(path, ns=(0, 0))
    versions.add(file_version("a", path.stat()))
    path.write_text("three")
    os.utime(path, ns=(0, 0))
    versions.add(file_version("a", path.stat()))
    assert len(versions) == 3


def write_images(root: Path) -> None:
    for split in ("train", "test"):
        for value, name in ((10, "a"), (20, "b")):
            (root / split / name).mkdir(parents=True)
            Image.new("RGB", (8, 8), (value, value, value)).save(root / split / name / "1.png")


ROOT = Path(__file__).parents[3]


def test_a_process_that_finds_its_data_in_the_cache_imports_no_library_to_read_them(tmp_path):
    write_images(tmp_path / "data")
    read = load_dataset("digits"), load_dataset("images", str(tmp_path / "data"))
    sums = [f"{int(data.train_images.sum())} {len(data.test_labels)}" for data in read]
    command = [sys.executable, "-c", REPORT, str(tmp_path / "data")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.splitlines() == [*sums, "set()"]
    assert sums[1] == f"{8 * 8 * 3 * 30} 2"
