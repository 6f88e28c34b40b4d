"""Data without test images: with `test-share`, a share of each class is held out for tests."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError
from fedapp.data.datasets import DATASETS, load_dataset
from fedapp.data.readers.held_out import held_out

pytestmark = pytest.mark.usefixtures("cache")
CATS, DOGS = 10, 5


@pytest.fixture
def folder(tmp_path) -> Path:
    """Ten images of cats and five of dogs, each of another grey, in folders without splits."""
    for first, name, count in ((0, "cat", CATS), (100, "dog", DOGS)):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for index in range(count):
            pixels = np.full((8, 8), first + index, np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pets" / name / f"{index:02}.png")
    return tmp_path / "pets"


def greys(images) -> list[int]:
    return [int(image[0, 0, 0]) for image in images]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.floats(0.01, 0.9))
def test_each_class_is_divided_by_the_share_and_keeps_both_parts(numbers, share):
    labels = np.array(numbers)
    if np.bincount(labels).max() < 2:
        with pytest.raises(UserError, match="no class has two images"):
            held_out(labels, share)
        return
    chosen = held_out(labels, share)
    for label in np.unique(labels):
        count = int((labels == label).sum())
        held = int(chosen[labels == label].sum())
        assert held == min(max(1, round(count * share)), count - 1)
    assert np.array_equal(chosen, held_out(labels, share)), "the same on every host"


def test_a_folder_of_classes_is_divided(folder):
    data = load_dataset("images", str(folder), test_share=0.2)
    assert data.classes == ("cat", "dog")
    train, test = greys(data.train_images), greys(data.test_images)
    assert sorted(train + test) == [*range(CATS), *range(100, 100 + DOGS)]
    assert [sum(grey < 100 for grey in part) for part in (train, test)] == [8, 2]
    assert [sum(grey >= 100 for grey in part) for part in (train, test)] == [4, 1]
    for images, labels in (
        (data.train_images, data.train_labels),
        (data.test_images, data.test_labels),
    ):
        assert [grey >= 100 for grey in greys(images)] == labels.astype(bool).tolist()
    assert data.mean == pytest.approx([np.mean(train) / 255]), "of the training images alone"


def test_two_shares_are_kept_apart_in_the_cache(folder):
    sizes = [len(load_dataset("images", str(folder), test_share=s).test_labels) for s in (0.2, 0.4)]
    assert sizes == [3, 6]


def test_class_folders_may_be_in_a_folder_called_train(folder, tmp_path):
    (tmp_path / "data").mkdir()
    folder.rename(tmp_path / "data" / "train")
    data = load_dataset("images", str(tmp_path / "data"), test_share=0.2)
    assert (len(data.train_labels), len(data.test_labels)) == (12, 3)


def test_without_a_share_the_error_names_the_key_that_helps(folder):
    with pytest.raises(UserError, match=r"no folder 'train' in .*; set test-share=0\.2 to hold a"):
        load_dataset("images", str(folder))


def test_data_with_test_images_are_not_divided(folder, tmp_path):
    (folder / "test").mkdir()
    with pytest.raises(UserError, match=r"'test-share' is 0\.2, but data-dir .* a folder 'test'"):
        load_dataset("images", str(folder), test_share=0.2)
    with pytest.raises(UserError, match=r"but dataset 'mnist' has test images of its own; set it"):
        parse_config({"dataset": "mnist", "test-share": 0.2})
    own = {"partition": "own", "classes": "cat dog", "num-clients": 2}
    with pytest.raises(UserError, match=r"with partition 'own' the server has the test images"):
        parse_config({"dataset": "images", "test-share": 0.2, **own})


def test_data_of_another_reader_are_not_silently_left_whole(monkeypatch):
    own = replace(DATASETS["images"], read=None, takes_photos=False)
    monkeypatch.setitem(DATASETS, "own", own)
    for key, value in (("test_share", 0.5), ("image_size", 32)):
        with pytest.raises(UserError, match=f"is {value}, but dataset 'own' has .*; set it to 0"):
            load_dataset("own", **{key: value})


def test_a_missing_or_empty_folder_is_named(folder, tmp_path):
    with pytest.raises(UserError, match=f"there is no data-dir {tmp_path}/nowhere; it must have"):
        load_dataset("images", str(tmp_path / "nowhere"), test_share=0.2)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=f"{tmp_path}/empty must have at least two class folders"):
        load_dataset("images", str(tmp_path / "empty"), test_share=0.2)
