"""Splits for clients with a model of their own: pooled samples, few classes, 75/25 per client."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError
from fedapp.data.datasets import load_dataset
from fedapp.data.partition import personal_splits
from fedapp.data.partition.personal_splits import dirichlet, least_size, pathological
from fedapp.data.partition.table import Partition, PartitionSpec, make_partition
from fedapp.runtime.process.context import ProcessContext


def labels_of(class_sizes: list[int]) -> np.ndarray:
    labels = np.repeat(np.arange(len(class_sizes)), class_sizes)
    return np.random.default_rng(0).permutation(labels)


def pooled(kind: str, labels: np.ndarray, **wish) -> Partition:
    return make_partition(kind, labels, labels, PartitionSpec(**wish, pooled=True), seed=1)


@given(st.integers(2, 8), st.integers(2, 15), st.data(), st.integers(0, 2**32))
def test_pathological_clients_have_few_classes_and_no_sample_twice(classes, clients, data, seed):
    per_client = data.draw(st.integers(1, classes))
    labels = labels_of([200] * classes)
    rng = np.random.default_rng(seed)
    parts = pathological(labels, labels, clients, per_client, rng)
    counts = parts.class_counts(labels, classes)
    assert ((counts > 0).sum(axis=1) <= per_client).all()
    assert counts.sum(axis=1).min() > 0
    assigned = np.concatenate(parts.train)
    assert len(np.unique(assigned)) == len(assigned)
    # A class goes to somebody as a whole, or, when no client has a place left, to nobody.
    assert set(counts.sum(axis=0)) <= {0, 200}
    assert bool(parts.notes) == bool((counts.sum(axis=0) == 0).any())


def test_pathological_deal_of_cifar10_is_the_published_one():
    labels = labels_of([6000] * 10)
    counts = pathological(labels, labels, 20, 2, np.random.default_rng(1)).class_counts(labels, 10)
    assert ((counts > 0).sum(axis=1) == 2).all()
    assert ((counts > 0).sum(axis=0) == 4).all()  # ceil(20 clients * 2 / 10 classes)
    for column in counts.T:
        held = np.sort(column[column > 0])
        assert held[0] >= 150  # a tenth of 6000 / 4
        assert held[:3].max() < 1500 <= held[3]


def test_classes_without_a_taker_are_left_out_and_said():
    # ceil(20 * 10 / 102) = 2 clients for each class fill 200 places with 100 of 102 classes.
    labels = labels_of([80] * 102)
    parts = pooled("pathological", labels, num_clients=20, classes_per_client=10)
    counts = parts.class_counts(labels, 102)
    tested = np.bincount(labels[np.concatenate(parts.test)], minlength=102)
    left_out = np.flatnonzero(counts.sum(axis=0) + tested == 0)
    assert len(left_out) == 2
    assert parts.notes == (
        f"classes {left_out.tolist()} are left out: no client may take one more",
    )
    names = tuple(f"flower {label}" for label in range(102))
    named = pooled("pathological", labels, num_clients=20, classes_per_client=10, class_names=names)
    assert named.notes == (
        f"classes {[names[label] for label in left_out]} are left out: no client may take one more",
    )


@pytest.mark.parametrize("kind", ["pathological", "dirichlet", "iid", "lda", "shards"])
def test_a_pool_is_cut_75_to_25_for_every_client(kind):
    labels = labels_of([400] * 10)
    parts = pooled(kind, labels, num_clients=10, alpha=0.3)
    for train, test in zip(parts.train, parts.test, strict=True):
        assert len(train) == int(0.75 * (len(train) + len(test)))
    everything = np.concatenate(parts.train + parts.test)
    assert np.array_equal(np.sort(everything), np.arange(4000))
    held_out = parts.global_test_set()
    assert held_out is not None
    assert not np.isin(np.concatenate(parts.train), held_out).any()
    assert len(held_out) == sum(map(len, parts.test))


def test_without_a_pool_test_parts_follow_the_training_proportions():
    train, test = labels_of([300] * 10), labels_of([100] * 10)
    parts = make_partition("pathological", train, test, PartitionSpec(10), seed=1)
    assert not parts.pooled
    assert parts.global_test_set() is None
    for own, tested in zip(parts.train, parts.test, strict=True):
        assert set(test[tested]) <= set(train[own])


def test_dirichlet_clients_have_128_samples_or_half_a_share():
    labels = labels_of([6000] * 10)
    parts = dirichlet(labels, labels, 20, 0.1, np.random.default_rng(1))
    assert parts.class_counts(labels, 10).sum(axis=1).min() >= 128
    assert sum(map(len, parts.train)) == 60_000
    assert least_size(60_000, 20) == 128
    assert least_size(1000, 20) == 25


def test_dirichlet_accepts_fewer_samples_where_half_a_share_is_less():
    labels = labels_of([180] * 10)
    split = dirichlet(labels, labels, 450, 100.0, np.random.default_rng(0))
    assert min(map(len, split.train)) == 2
    assert not split.notes


def test_dirichlet_takes_its_best_draw_and_says_so(monkeypatch):
    monkeypatch.setattr(personal_splits, "MAX_DRAWS", 30)
    labels = labels_of([300] * 10)
    parts = dirichlet(labels, labels, 20, 0.05, np.random.default_rng(3))
    smallest = min(map(len, parts.train))
    assert 4 <= smallest < 75
    assert parts.notes == (
        f"the smallest client has {smallest} samples, not 75, in the best of 30 draws",
    )
    with pytest.raises(UserError, match=r"no Dirichlet split with alpha = 0.001 .* raise alpha"):
        dirichlet(labels, labels, 100, 0.001, np.random.default_rng(0))


def test_a_remembered_draw_gives_the_same_split_and_the_same_later_numbers(monkeypatch):
    labels = labels_of([300] * 10)

    def split() -> tuple[list[list[int]], float]:
        rng = np.random.default_rng(5)
        parts = dirichlet(labels, labels, 12, 0.2, rng)
        return [part.tolist() for part in parts.train + parts.test], rng.random()

    first = split()
    monkeypatch.setattr(personal_splits, "draw_counts", None)
    assert split() == first


@pytest.mark.parametrize(
    ("kind", "wish", "words"),
    [
        ("pathological", {"classes_per_client": 11}, "between 1 and the 10 classes, but it is 11"),
        ("dirichlet", {"alpha": -1.0}, "alpha must be a positive number, but it is -1.0"),
        ("iid", {"num_clients": 30}, "client 10 has 1 samples, too few to train and to test on"),
    ],
)
def test_impossible_wishes_are_refused_in_a_sentence(kind, wish, words):
    labels = labels_of([4] * 10)
    with pytest.raises(UserError, match=words):
        pooled(kind, labels, **{"num_clients": 4, **wish})


def test_a_node_tests_on_what_the_clients_of_a_pool_hold_out():
    config = parse_config({"method": "fedavg", "partition": "pathological", "num-clients": 5})
    assert (config.pool_data, config.normalisation) == (True, "symmetric")
    assert (config.classes_per_client, config.partition_seed) == (2, 1)
    node = ProcessContext(config)
    tested = [(images, labels) for images, labels in node.data.test_batches()]
    assert sum(len(labels) for _, labels in tested) == sum(map(len, node.data.partition.test))
    values = np.concatenate([images.numpy().ravel() for images, _ in tested])
    assert (values.min(), values.max()) == (-1, 1)
    [(images, labels)] = node.data.test_batches(node.data.partition.test[2])
    pool = np.concatenate([load_dataset("digits").train_images, load_dataset("digits").test_images])
    expected = pool[node.data.partition.test[2]][..., 0] / 127.5 - 1
    assert np.allclose(images[:, 0].numpy(), expected, atol=1e-6)
    assert set(labels.tolist()) <= set(range(10))
    assert len(node.data.class_counts()[0]) == 5
