"""Test batches: their size is a setting where BatchNorm normalises by the batch, and only there."""

import pytest

from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError
from fedapp.runtime.process import ProcessContext


def sizes(**keys: object) -> list[int]:
    node = ProcessContext(parse_config({"method": "fedavg", **keys}))
    return [len(labels) for _, labels in node.data.test_batches()]


def test_batchnorm_sees_test_batches_of_the_size_asked_for():
    found = sizes(model="resnet10", **{"test-batch-size": 50})
    assert set(found[:-1]) == {50}
    assert sum(found) == 359


def test_networks_that_do_not_mix_images_take_larger_batches():
    for keys in ({"model": "cnn"}, {"model": "resnet10", "bn": "group"}):
        assert sizes(**{**keys, "test-batch-size": 50}) == [359]


def test_a_test_batch_of_one_image_is_refused():
    with pytest.raises(UserError, match="test-batch-size"):
        parse_config({"test-batch-size": 1})
