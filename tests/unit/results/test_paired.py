"""Paired differences over common seeds: the t-test and Holm's correction, by hand-made numbers."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedapp.results.comparison.paired import holm, paired_difference

accuracies = st.floats(0, 1)


def test_paired_t_test_against_a_textbook_computation():
    one, other = {0: 0.80, 1: 0.82, 2: 0.87, 9: 0.1}, {0: 0.78, 1: 0.79, 2: 0.80, 7: 0.9}
    pair = paired_difference(one, other)
    assert pair.seeds == (0, 1, 2)
    assert pair.difference == pytest.approx(0.04)
    assert pair.standard_error == pytest.approx(math.sqrt(0.0007 / 3))  # differences 2, 3, 7 %
    t = pair.difference / pair.standard_error
    # Student's distribution with two degrees of freedom has this closed form
    assert pair.p_value == pytest.approx(1 - t / math.sqrt(2 + t * t))


@given(st.dictionaries(st.integers(0, 20), st.tuples(accuracies, accuracies), min_size=2))
def test_exchanging_the_groups_changes_the_sign_alone(values):
    one, other = ({seed: pair[i] for seed, pair in values.items()} for i in (0, 1))
    forth, back = paired_difference(one, other), paired_difference(other, one)
    assert back.difference == -forth.difference
    assert back.standard_error == forth.standard_error
    assert back.p_value == pytest.approx(forth.p_value)
    assert forth.p_value is None or 0 <= forth.p_value <= 1


def test_no_verdict_from_one_common_seed_or_equal_differences():
    assert paired_difference({0: 0.5, 1: 0.6}, {1: 0.5, 2: 0.6}) is None
    same = paired_difference({0: 0.5, 1: 0.6}, {0: 0.4, 1: 0.5})
    assert (same.p_value, same.standard_error) == (None, 0.0)
    assert same.difference == pytest.approx(0.1)


def test_holm_against_a_worked_example():
    adjusted = holm([0.01, 0.04, None, 0.03, 0.005])
    assert adjusted == [pytest.approx(0.03), pytest.approx(0.06), None, pytest.approx(0.06), 0.02]


def test_equal_results_have_p_1_and_count_among_the_comparisons():
    same = paired_difference({0: 0.5, 1: 0.6}, {0: 0.5, 1: 0.6})
    assert (same.difference, same.p_value) == (0, 1)
    assert paired_difference({0: 0.5, 1: 0.6}, {0: 0.4, 1: 0.5}).p_value is None
    assert holm([0.02, 0.03, 1.0]) == [pytest.approx(0.06), pytest.approx(0.06), 1]


@given(st.lists(st.floats(0, 1)))
def test_holm_never_lowers_a_p_value_and_keeps_their_order(p_values):
    adjusted = holm(p_values)
    assert all(p <= a <= 1 for p, a in zip(p_values, adjusted, strict=True))
    by_p = [a for _, a in sorted(zip(p_values, adjusted, strict=True))]
    assert by_p == sorted(by_p)
