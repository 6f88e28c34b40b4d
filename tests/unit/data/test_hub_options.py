"""Data sets of the hub that are scaled, or divided, because their images or splits need it."""

import numpy as np
import pytest
from test_hub import NAME, png, rows, write

from fedapp.core.errors import UserError
from fedapp.data.datasets import load_dataset

pytestmark = pytest.mark.usefixtures("cache")


def test_images_of_any_size_are_scaled_and_kept_apart_in_the_cache(tmp_path):
    train = {"img": rows(1, 0)["img"] + rows(1, 0, side=9)["img"], "label": [0, 1]}
    copy = str(write(tmp_path / "sizes", {"train": train, "test": rows(2, 0, side=5)}))
    for side in (6, 7):
        data = load_dataset(NAME, copy, image_size=side)
        assert data.train_images.shape == data.test_images.shape == (2, side, side, 3)


def test_a_set_without_a_test_split_is_divided(tmp_path):
    copy = str(write(tmp_path / "whole", {"train": rows(10, 0)}))
    data = load_dataset(NAME, copy, test_share=0.2)
    assert np.bincount(data.train_labels).tolist() == [4, 4]
    assert np.bincount(data.test_labels).tolist() == [1, 1]
    images = np.concatenate([data.train_images, data.test_images])
    assert len({image.tobytes() for image in images}) == 10
    broken = rows(10, 0)
    broken["img"][7] = {"bytes": png(7)[:40], "path": None}
    with pytest.raises(UserError, match="image 7 of train in "):
        load_dataset(NAME, str(write(tmp_path / "broken", {"train": broken})), test_share=0.2)
    with_test = str(write(tmp_path / "both", {"train": rows(4, 0), "test": rows(2, 9)}))
    with pytest.raises(UserError, match=r"'test-share' is 0\.2, but the data in .* a split 'test'"):
        load_dataset(NAME, with_test, test_share=0.2)
