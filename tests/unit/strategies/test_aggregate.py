"""The exact mean: right, independent of order and grouping, and deaf to unfit updates."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import VECTORS

from strategies.aggregate import ExactSum, GroupSums, UpdateRefused, weighted_mean

SERVER = VECTORS["server"]


def _models() -> list[dict[str, np.ndarray]]:
    return [{"w": np.array(w)} for w in SERVER["w_i"]]


@pytest.mark.parametrize(
    ("weights", "expected"), [([1, 1, 1], "mean_uniform"), (SERVER["n_i"], "mean_size_weighted")]
)
def test_weighted_mean_equals_the_vectors(weights, expected):
    mean = weighted_mean(_models(), weights)["w"]
    np.testing.assert_allclose(mean, SERVER[expected], rtol=1e-9)


def _cohort(seed: int, clients: int) -> tuple[dict, list[dict], list[int]]:
    rng = np.random.default_rng(seed)
    reference = {"a": rng.normal(size=(3, 4)).astype(np.float32), "b": np.zeros(5, np.float32)}
    reference["scale"] = np.float32(1.5) + np.zeros((), np.float32)
    models = [
        {
            n: (t + rng.normal(scale=0.1, size=t.shape)).astype(np.float32)
            for n, t in reference.items()
        }
        for _ in range(clients)
    ]
    return reference, models, [int(w) for w in rng.integers(1, 900, clients)]


@given(seed=st.integers(0, 10_000), clients=st.integers(1, 9), data=st.data())
def test_order_and_grouping_change_no_bit(seed, clients, data):
    reference, models, weights = _cohort(seed, clients)
    total = sum(weights)
    plain = ExactSum(reference, total)
    for model, weight in zip(models, weights, strict=True):
        plain.add(model, weight)
    order = data.draw(st.permutations(range(clients)))
    cut = data.draw(st.integers(0, clients))
    grouped = ExactSum(reference, total)
    for group in (order[:cut], order[cut:]):
        if group:
            partial = ExactSum(reference, total)
            for client in group:
                partial.add(models[client], weights[client])
            grouped.check_partial(partial.sums, partial.weight)
            grouped.merge_checked(partial.sums, partial.weight)
    for name, mean in plain.mean().items():
        assert mean.dtype == np.float32
        np.testing.assert_array_equal(mean, grouped.mean()[name])


@given(largest=st.floats(0.01, 4096), clients=st.integers(2, 5))
def test_a_further_group_has_one_scale_whatever_values_a_node_has(largest, clients):
    """A node knows the shapes from a client's values, the server from zeros."""
    model, weight = {"w": np.ones(2, np.float32)}, 10 * clients
    groups = [
        {"control": {"w": np.array([largest / 2**k, -0.3], np.float32)}} for k in range(clients)
    ]
    node = GroupSums(model, groups[0], weight, clients)
    single, several = (
        GroupSums(model, {"control": {"w": np.zeros(2, np.float32)}}, weight, clients)
        for _ in range(2)
    )
    for group in groups:
        for sums in (node, single):
            sums.add_checked(*sums.check(model, group), 10)
    sums = {name: group.sums for name, group in node.groups.items()}
    several.merge(node.model.sums, sums, weight, clients)
    mean = several.groups["control"].mean()["w"]
    np.testing.assert_array_equal(mean, single.groups["control"].mean()["w"])
    expected = np.mean([group["control"]["w"] for group in groups], axis=0, dtype=np.float64)
    np.testing.assert_allclose(mean, expected, rtol=1e-6)


@given(seed=st.integers(0, 10_000), clients=st.integers(1, 9))
def test_mean_is_as_exact_as_float64(seed, clients):
    reference, models, weights = _cohort(seed, clients)
    total = ExactSum(reference, sum(weights))
    for model, weight in zip(models, weights, strict=True):
        total.add(model, weight)
    for name, mean in total.mean().items():
        stack = np.stack([model[name].astype(np.float64) for model in models])
        expected = np.average(stack, axis=0, weights=weights)
        np.testing.assert_allclose(mean, expected, rtol=1.2e-7, atol=1e-9)


def test_the_mean_of_one_client_is_its_model():
    reference, models, _ = _cohort(3, 1)
    total = ExactSum(reference, 500)
    total.add(models[0], 500)
    for name, mean in total.mean().items():
        np.testing.assert_array_equal(mean, models[0][name])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"a": np.full((3, 4), np.nan, np.float32)}, "non-finite"),
        ({"a": np.full((3, 4), -np.inf, np.float32)}, "non-finite"),
        ({"a": np.full((3, 4), 1e9, np.float32)}, "more than"),
        ({"a": np.zeros((4, 3), np.float32)}, "shape"),
        ({"c": np.zeros(2, np.float32)}, "is unexpected"),
        ({"b": np.zeros(5, "m8[ns]")}, "'b' is of timedelta64"),
        ({"b": np.zeros(5, np.int64)}, "'b' is of int64, not of floating-point numbers"),
    ],
)
def test_unfit_updates_are_refused_and_leave_the_sum_alone(change, words):
    reference, models, _ = _cohort(5, 1)
    total = ExactSum(reference, 10)
    total.add(models[0], 4)
    before = {name: array.copy() for name, array in total.sums.items()}
    with pytest.raises(UpdateRefused, match=words):
        total.add({**models[0], **change}, 6)
    assert total.weight == 4
    for name, array in before.items():
        np.testing.assert_array_equal(array, total.sums[name])


def test_a_missing_tensor_and_a_wild_partial_sum_are_refused():
    reference, models, _ = _cohort(6, 1)
    total = ExactSum(reference, 10)
    with pytest.raises(UpdateRefused, match="'b' is missing"):
        total.add({"a": models[0]["a"]}, 1)
    wild = {name: np.full(array.shape, 2**62, np.int64) for name, array in reference.items()}
    with pytest.raises(UpdateRefused, match="out of range"):
        total.check_partial(wild, 1)
    with pytest.raises(UpdateRefused, match="out of range"):
        total.check_partial(models[0], 1)


def test_no_models_have_no_mean():
    with pytest.raises(ValueError, match="no weighted mean"):
        weighted_mean([], [])
    with pytest.raises(ValueError, match="no mean"):
        ExactSum({"a": np.zeros(2)}, 1).mean()


def test_a_sum_in_pieces_has_the_bits_of_one_expression():
    rng = np.random.default_rng(3)
    size = 2 * (1 << 15) + 17  # two whole pieces and a rest
    reference = {"w": rng.normal(size=size).astype(np.float32), "one": np.float32(2) * np.ones(())}
    models = [
        {n: (a + rng.normal(size=a.shape)).astype(np.float32) for n, a in reference.items()}
        for _ in range(3)
    ]
    total = ExactSum(reference, 600)
    for weight, model in zip((100, 200, 300), models, strict=True):
        total.add(model, weight)
    for name in reference:
        scale = 2.0 ** total.exponents[name]
        expected = sum(
            np.rint(np.multiply(m[name], w * scale, dtype=np.float64)).astype(np.int64)
            for w, m in zip((100, 200, 300), models, strict=True)
        )
        np.testing.assert_array_equal(total.sums[name], expected)
        mean = np.asarray(expected / (600 * scale), reference[name].dtype)
        np.testing.assert_array_equal(total.mean()[name], mean)
        assert total.mean()[name].shape == reference[name].shape


@pytest.mark.parametrize("largest", [0.1, 900.0])
def test_large_and_small_values_are_rounded_half_to_even(largest):
    """Values far above the received ones do not fit the quick way of rounding."""
    rng = np.random.default_rng(4)
    values = rng.normal(scale=0.02, size=1000).astype(np.float32)
    values[:2] = largest, -largest
    total = ExactSum({"w": np.full(1000, 0.9, np.float32)}, 4)
    scale = 2.0 ** total.exponents["w"]
    assert (largest * 4 * scale < 2**51) == (largest < 1)
    values[2:6] = np.array([0.5, 1.5, -0.5, -2.5]) / (4 * scale)
    total.add({"w": values}, 4)
    assert total.sums["w"][2:6].tolist() == [0, 2, 0, -2]
    expected = [round(Fraction(float(value)) * 4 * int(scale)) for value in values]
    assert total.sums["w"].tolist() == expected


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, -1e9])
def test_one_bad_value_anywhere_is_found(bad):
    reference = {"w": np.ones(50_000, np.float32)}
    total = ExactSum(reference, 10)
    for place in (0, 33_000, 49_999):
        model = {"w": np.ones(50_000, np.float32)}
        model["w"][place] = bad
        with pytest.raises(UpdateRefused, match=r"non-finite|more than"):
            total.add(model, 1)
    assert not total.sums["w"].any()
