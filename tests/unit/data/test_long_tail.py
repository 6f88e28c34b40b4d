"""Long-tailed data: few images of the last classes, all test images, the same clients' rules."""

import numpy as np
import pytest
from in_process import settings, train_one

from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError
from fedapp.data.partition.long_tail import long_tailed
from fedapp.runtime.process.run_data import load_partition

# CIFAR-10-LT with imbalance factor 100, as in the literature
CIFAR10_LT = [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]


def kept(labels, factor, seed=0):
    return long_tailed(labels, factor, np.random.default_rng(seed))


def test_the_counts_are_those_of_cifar10_lt():
    labels = np.random.default_rng(1).permutation(np.repeat(np.arange(10), 5000))
    chosen = kept(labels, 100)
    assert np.bincount(labels[chosen]).tolist() == CIFAR10_LT
    assert (np.diff(chosen) > 0).all()
    assert kept(labels, 100, seed=1).tolist() != chosen.tolist()
    assert kept(labels, 1).tolist() == list(range(50_000))


def test_a_class_gives_no_more_than_it_has_and_at_least_one():
    labels = np.array([0] * 3 + [1] * 30 + [4] * 30)
    assert np.bincount(labels[kept(labels, 1000)]).tolist() == [3, 1, 0, 0, 1]
    assert kept(np.zeros(7, int), 10).tolist() == list(range(7))


@pytest.mark.parametrize("kind", ["iid", "stratified", "shards", "lda", "unbalanced"])
def test_clients_share_what_is_left_and_the_test_images_stay(kind):
    data, parts = load_partition(parse_config(settings(partition=kind, imbalance_factor=10)))
    images = np.concatenate(parts.train)
    assert len(np.unique(images)) == len(images)
    counts = np.bincount(data.train_labels[images])
    assert counts[0] == 10 * counts[-1] + counts[0] % 10
    assert (np.diff(counts) < 0).all()
    assert parts.global_test_set() is None  # the whole published one
    tests = np.concatenate(parts.test)
    assert kind == "lda" or sorted(tests) == list(range(len(data.test_labels)))


def test_a_run_trains_on_the_images_that_are_left(tmp_path):
    changes = {"num_rounds": 1, "partition": "iid", "local_epochs": 1}
    run = train_one(tmp_path, imbalance_factor=100, **changes)
    labels = load_partition(parse_config(settings()))[0].train_labels
    assert [row["images"] for row in run.rounds()] == [len(kept(labels, 100))]
    assert sum(map(sum, run.partition()["train_counts"])) == len(kept(labels, 100))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"partition": "pathological"}, "set pool-data=false"),
        ({"partition": "iid", "pool_data": True}, "set pool-data=false"),
        ({"partition": "file", "partition_file": "split.json"}, "every client's images are given"),
        ({"imbalance_factor": 0.1}, "imbalance-factor"),
    ],
)
def test_what_cannot_be_long_tailed_is_refused(changes, reason):
    with pytest.raises(UserError, match=reason):
        parse_config(settings(**{"imbalance_factor": 10, **changes}))
