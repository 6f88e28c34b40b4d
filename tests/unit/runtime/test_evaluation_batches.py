"""Test batches: their size is configurable only where BatchNorm normalises by the batch."""

import pytest

from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError
from fedapp.runtime.process.context import ProcessContext


def sizes(**keys: object) -> list[int]:
    process = ProcessContext(parse_config({"method": "fedavg", **keys}))
    return [len(labels) for _, labels in process.data.test_batches()]


def test_batchnorm_sees_test_batches_of_the_size_asked_for():
    batch_sizes = sizes(model="resnet10", **{"test-batch-size": 50})
    assert set(batch_sizes[:-1]) == {50}
    assert sum(batch_sizes) == 359


def test_networks_that_do_not_mix_images_take_larger_batches():
    for keys in ({"model": "cnn"}, {"model": "resnet10", "bn": "group"}):
        assert sizes(**{**keys, "test-batch-size": 50}) == [359]


def test_a_test_batch_of_one_image_is_refused():
    with pytest.raises(UserError, match="test-batch-size"):
        parse_config({"test-batch-size": 1})
