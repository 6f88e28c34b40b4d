"""Splits must keep their promises for any labels: disjoint, complete, bounded, repeatable."""

import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError
from fedapp.data.partition.assignment import quotas_by_largest_remainder
from fedapp.data.partition.splits import iid, lda, shards, unbalanced
from fedapp.data.partition.table import PARTITIONS, PartitionSpec, make_partition
from fedapp.runtime.process.run_data import draw_partition, load_run_dataset

seeds = st.integers(0, 2**32)

DRAWN = [kind for kind in PARTITIONS if kind not in ("own", "folders", "file")]  # others: not drawn


def labels_of(class_sizes: list[int], seed: int = 0) -> np.ndarray:
    labels = np.repeat(np.arange(len(class_sizes)), class_sizes)
    return np.random.default_rng(seed).permutation(labels)


def assert_covers_once(parts: list[np.ndarray], total: int) -> None:
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(total))


@given(
    st.lists(st.integers(3, 40), min_size=2, max_size=6),
    st.integers(1, 12),
    st.booleans(),
    seeds,
)
def test_iid_parts_are_equal_and_cover_both_sets_once(sizes, num_clients, stratified, seed):
    assume(num_clients <= sum(sizes))
    train, test = labels_of(sizes), labels_of(sizes[::-1], 1)
    parts = iid(train, test, num_clients, np.random.default_rng(seed), stratified)
    for part, labels in ((parts.train, train), (parts.test, test)):
        assert len(part) == num_clients
        assert_covers_once(part, len(labels))
        assert np.ptp([len(p) for p in part]) <= 1
    if stratified:
        counts = parts.class_counts(train, len(sizes))
        assert (np.ptp(counts, axis=0) <= 1).all()


def test_plain_iid_is_not_stratified():
    labels = labels_of([500, 500])
    counts = iid(labels, labels, 10, np.random.default_rng(0)).class_counts(labels, 2)
    assert np.ptp(counts[:, 0]) > 1


def test_leftovers_of_a_stratified_split_do_not_favour_low_client_ids():
    labels = labels_of([11])
    rng = np.random.default_rng(0)
    gainers = {
        int(np.argmax([len(p) for p in iid(labels, labels, 10, rng, stratified=True).train]))
        for _ in range(50)
    }
    assert len(gainers) > 5


@st.composite
def shard_problems(draw):
    classes = draw(st.integers(2, 6))
    num_clients = draw(st.integers(1, 12))
    per_client = draw(st.integers(1, 6))
    assume(num_clients * per_client % classes == 0)
    least = num_clients * per_client // classes
    sizes = st.lists(st.integers(least, 3 * least + 5), min_size=classes, max_size=classes)
    return draw(sizes), draw(sizes), num_clients, per_client


@given(shard_problems(), seeds)
def test_shards_have_few_classes_the_same_in_training_and_test(problem, seed):
    train_sizes, test_sizes, num_clients, per_client = problem
    train, test = labels_of(train_sizes), labels_of(test_sizes, 1)
    parts = shards(train, test, num_clients, per_client, np.random.default_rng(seed))
    assert_covers_once(parts.train, len(train))
    assert_covers_once(parts.test, len(test))
    for train_part, test_part in zip(parts.train, parts.test, strict=True):
        classes = set(train[train_part])
        assert classes == set(test[test_part])
        assert len(classes) <= per_client


def test_shards_of_balanced_classes_are_equal_and_in_the_same_proportion_in_both_sets():
    train, test = labels_of([600] * 10), labels_of([100] * 10, 1)
    parts = shards(train, test, 20, 3, np.random.default_rng(3))
    train_counts = parts.class_counts(train, 10)
    assert (train_counts.sum(axis=1) == 300).all()
    assert set(np.unique(train_counts)) <= {0, 100, 200, 300}
    test_counts = np.stack([np.bincount(test[p], minlength=10) for p in parts.test])
    # 100 test images make 6 shards of 16 or 17.
    assert (np.abs(test_counts - train_counts / 6) < 3).all()


def test_leftover_samples_make_shards_differ_by_one():
    train = labels_of([23, 23])
    counts = shards(train, train, 4, 1, np.random.default_rng(0)).class_counts(train, 2)
    assert sorted(counts.max(axis=1)) == [11, 11, 12, 12]


def test_shards_need_a_whole_number_per_class():
    labels = labels_of([50] * 10)
    with pytest.raises(UserError, match=r"multiple of the 10 classes, but 7 x 3 = 21"):
        shards(labels, labels, 7, 3, np.random.default_rng(0))


def test_shards_name_a_class_that_is_too_small():
    train, test = labels_of([50] * 10), labels_of([3] + [50] * 9)
    with pytest.raises(UserError, match=r"class 0 .* has 3 test samples, too few for 4 shards: "):
        shards(train, test, 20, 2, np.random.default_rng(0))
    with pytest.raises(UserError, match="is 20000000000000, but there are only 500 training imag"):
        shards(train, test, 20, 10**12, np.random.default_rng(0))
    config = parse_config({"dataset": "digits", "partition": "shards", "num-clients": 1000})
    data = load_run_dataset(config)
    named = replace(data, classes=tuple(f"digit {label}" for label in data.classes))
    with pytest.raises(UserError, match=r"^class 'digit 0' has 1\d\d training samples, too few "):
        draw_partition(config, named)


@settings(deadline=None)
@given(
    st.integers(2, 8),
    st.integers(1, 8),
    st.sampled_from([0.3, 1.0, 100.0]),
    st.booleans(),
    seeds,
)
def test_lda_covers_training_data_and_draws_test_data_in_proportion(
    classes, num_clients, alpha, cap, seed
):
    train, test = labels_of([120] * classes), labels_of([30] * classes, 1)
    rng = np.random.default_rng(seed)
    parts = lda(train, test, num_clients, alpha, rng, balance_cap=cap)
    assert_covers_once(parts.train, len(train))
    counts = parts.class_counts(train, classes)
    assert counts.sum(axis=1).min() >= 10
    for row, part in zip(counts, parts.test, strict=True):
        assert len(np.unique(part)) == len(part) == max(1, round(row.sum() / 4))
        test_counts = np.bincount(test[part], minlength=classes)
        assert (np.abs(test_counts - row * len(part) / row.sum()) < 1).all()


def test_lda_cap_stops_clients_that_hold_an_average_share():
    train = labels_of([500] * 10)
    capped = lda(train, train, 10, 0.3, np.random.default_rng(0)).class_counts(train, 10)
    # Before the class that lifts it over the average a client holds less than the average.
    assert ((capped.sum(axis=1) - capped.max(axis=1)) < 500).all()
    held = np.cumsum(capped, axis=1)
    assert (capped[:, 1:][held[:, :-1] >= 500] == 0).all()
    free = lda(train, train, 10, 0.3, np.random.default_rng(0), balance_cap=False)
    sizes = free.class_counts(train, 10).sum(axis=1)
    assert np.ptp(sizes) > np.ptp(capped.sum(axis=1))


def test_the_cap_can_be_switched_off_by_its_key():
    train = labels_of([500] * 10)
    chosen = PartitionSpec(10, alpha=0.3)
    off = make_partition("lda", train, train, replace(chosen, lda_cap=False), seed=0)
    plain = lda(train, train, 10, 0.3, np.random.default_rng(0), balance_cap=False)
    assert [part.tolist() for part in off.train] == [part.tolist() for part in plain.train]
    on = make_partition("lda", train, train, chosen, seed=0)
    assert [len(part) for part in on.train] != [len(part) for part in off.train]


def test_lda_alpha_sets_the_heterogeneity():
    train = labels_of([500] * 10)

    def largest_share(alpha: float) -> float:
        counts = lda(train, train, 10, alpha, np.random.default_rng(0)).class_counts(train, 10)
        return float((counts.max(axis=1) / counts.sum(axis=1)).mean())

    assert largest_share(0.1) > 0.4 > 0.15 > largest_share(1000)


def test_lda_with_few_samples_asks_for_half_an_average_share():
    train = labels_of([20, 20])
    parts = lda(train, train, 10, 100.0, np.random.default_rng(0))
    assert min(len(p) for p in parts.train) >= 2


def test_lda_gives_up_with_a_sentence(monkeypatch):
    monkeypatch.setattr("fedapp.data.partition.splits.MAX_DRAWS", 20)
    labels = labels_of([100, 100])
    with pytest.raises(UserError, match=r"no LDA split with alpha = 0.01 .* raise alpha or lower"):
        lda(labels, labels, 20, 0.01, np.random.default_rng(0))


@pytest.mark.parametrize(("clients", "alpha"), [(100, 0.03), (200, 0.05), (200, 1e-9)])
def test_lda_that_cannot_exist_is_refused_after_a_hundred_draws(clients, alpha):
    labels = labels_of([5000] * 10)
    with pytest.raises(UserError, match=r"\(100 draws tried: \d+ clients on average have fewer\)"):
        lda(labels, labels, clients, alpha, np.random.default_rng(0))


def test_lda_searches_on_where_a_split_is_rare():
    labels = labels_of([5000] * 10)  # FedNTD's hardest setting: one draw in thousands is accepted
    parts = lda(labels, labels, 100, 0.05, np.random.default_rng(0))
    assert min(len(part) for part in parts.train) >= 10


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan"), float("inf")])
def test_lda_refuses_an_impossible_alpha(alpha):
    labels = labels_of([100, 100])
    with pytest.raises(UserError, match="alpha must be a positive number"):
        lda(labels, labels, 2, alpha, np.random.default_rng(0))


counts_lists = st.lists(st.integers(0, 50), min_size=2, max_size=6)


@given(counts_lists, st.integers(1, 60), st.data())
def test_quotas_reach_the_total_within_what_is_available(counts, total, data):
    assume(sum(counts))
    size = len(counts)
    available = np.array(data.draw(st.lists(st.integers(0, 40), min_size=size, max_size=size)))
    quotas = quotas_by_largest_remainder(np.array(counts), total, available)
    usable = available[np.array(counts) > 0].sum()
    assert quotas.sum() == min(total, usable)
    assert ((quotas >= 0) & (quotas <= available)).all()
    assert (quotas[np.array(counts) == 0] == 0).all()


def test_quotas_of_a_known_case():
    # 7 seats for 5 : 3 : 1 are 3.89, 2.33, 0.78: floors 3, 2, 0, remainders to the 1st and 3rd.
    quotas = quotas_by_largest_remainder(np.array([5, 3, 1]), 7, np.array([9, 9, 9]))
    assert quotas.tolist() == [4, 2, 1]


@pytest.mark.parametrize("kind", DRAWN)
def test_equal_seeds_give_equal_splits_and_other_seeds_others(kind):
    train, test = labels_of([60] * 4), labels_of([20] * 4, 1)

    def draw(seed: int) -> list[list[int]]:
        parts = make_partition(kind, train, test, PartitionSpec(4, alpha=1.0), seed=seed)
        return [part.tolist() for part in parts.train + parts.test]

    assert draw(5) == draw(5)
    assert draw(5) != draw(6)


def test_unknown_partition_lists_the_known_ones():
    labels = labels_of([5, 5])
    with pytest.raises(UserError, match="'random' does not exist; there is iid, strat"):
        make_partition("random", labels, labels, PartitionSpec(2), seed=0)


@pytest.mark.parametrize("kind", DRAWN)
@pytest.mark.parametrize("num_clients", [0, 11])
def test_number_of_clients_is_bounded_by_the_samples(kind, num_clients):
    labels = labels_of([5, 5])
    with pytest.raises(UserError, match="between 1 and the 10 training samples"):
        make_partition(kind, labels, labels, PartitionSpec(num_clients, alpha=1.0), seed=0)


@given(st.integers(1, 60), st.sampled_from([0.0, 0.5, 2.0]), seeds)
def test_unbalanced_parts_cover_both_sets_once_and_leave_nobody_out(num_clients, sigma, seed):
    train, test = labels_of([60] * 5), labels_of([20] * 5, 1)
    parts = unbalanced(train, test, num_clients, sigma, np.random.default_rng(seed))
    assert_covers_once(parts.train, len(train))
    assert_covers_once(parts.test, len(test))
    assert min(len(part) for part in parts.train) >= min(10, max(1, 300 // (2 * num_clients)))
    if sigma == 0:
        assert np.ptp([len(part) for part in parts.train]) <= 1


def test_unbalanced_sizes_are_log_normal_and_the_classes_even():
    train, test = labels_of([6000] * 10), labels_of([1000] * 10, 1)
    parts = unbalanced(train, test, 100, 1.0, np.random.default_rng(0))
    sizes = np.array([len(part) for part in parts.train])
    assert 0.8 < np.log(sizes - 10 + 0.5).std() < 1.2
    tests = np.array([len(part) for part in parts.test])
    assert (np.abs(tests - sizes / 6) < 1).all()
    largest = parts.class_counts(train, 10)[sizes.argmax()]
    assert largest.min() > 0.7 * largest.max()


def test_a_thousand_clients_are_dealt_in_seconds():
    train, test = labels_of([500] * 100), labels_of([100] * 100, 1)
    for kind in (*DRAWN, "own"):
        start = time.perf_counter()
        spec = PartitionSpec(1000, shards=10, alpha=0.3)
        parts = make_partition(kind, train, test, spec, seed=0)
        assert len(parts.train) == 1000
        assert time.perf_counter() - start < 20, kind
