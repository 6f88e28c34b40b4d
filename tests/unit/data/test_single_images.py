"""One image alone, as a batch, in training or as a test, where BatchNorm needs two."""

import pytest
from heterogeneous_runs import run

from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError
from fedapp.runtime.process.context import ProcessContext


@pytest.mark.parametrize(
    ("keys", "refused"),
    [
        ({"method": "feddor"}, True),
        ({"model": "mobilenet"}, True),
        ({"model": "resnet10", "bn": "running"}, True),
        ({"model": "resnet10", "bn": "group"}, False),
        ({"model": "resnet10", "dataset": "cifar10"}, False),
        ({"model": "resnet18-imagenet-stem", "dataset": "cifar10"}, True),
        ({"model": "cnn"}, False),
    ],
)
def test_a_batch_of_one_image_is_refused_where_batchnorm_would_see_one_value(keys, refused):
    config = run(**{"method": "fedavg", "batch_size": 1, "feature_dim": "auto", **keys})
    if refused:
        with pytest.raises(UserError, match=r"'batch-size' is 1, but .* BatchNorm"):
            parse_config(config)
    else:
        assert parse_config(config).batch_size == 1


def test_images_whose_size_only_the_files_tell_are_looked_at_when_they_are_read():
    config = run(method="fedavg", batch_size=1, feature_dim="auto", model="mobilenet", bn="group")
    checked = parse_config(config)
    with pytest.raises(UserError, match="'mobilenet' on 8x8 images has BatchNorm"):
        ProcessContext(checked.model_copy(update={"bn": "batch"}))


@pytest.mark.parametrize("drop_last", [False, True])
def test_a_client_with_one_image_is_named_where_batchnorm_would_see_one_value(drop_last):
    keys = {"feature_dim": "auto", "model": "mobilenet", "drop_last": drop_last}
    node = ProcessContext(parse_config(run(method="fedavg", **keys)))
    node.data.partition.train[3] = node.data.partition.train[3][:1]
    with pytest.raises(UserError, match="client 3 has one training image in round 7, but model 'm"):
        node.client(3).data.training(7)
    keys["model"] = "cnn"
    node = ProcessContext(parse_config(run(method="fedavg", **keys)))
    node.data.partition.train[3] = node.data.partition.train[3][:1]
    assert [len(labels) for _, labels in node.client(3).data.training(7)()] == [1]


@pytest.mark.parametrize(
    ("keys", "tested"),
    [({}, 0), ({"bn": "running"}, 1), ({"bn": "group"}, 1), ({"model": "cnn"}, 1)],
)
def test_a_single_test_image_is_none_where_batchnorm_would_see_one_value(keys, tested):
    keys = {"method": "fedavg", "feature_dim": "auto", "model": "mobilenet", **keys}
    node = ProcessContext(parse_config(run(**keys)))
    node.data.partition.test[3] = node.data.partition.test[3][:1]
    client = node.client(3)
    _, examples, _ = client.evaluate(client.get_parameters({}), {"server_round": 1, "lr": 0.1})
    assert examples == tested
