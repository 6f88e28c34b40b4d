"""The papers' measurements against the numbers of the specification, and at their edges.

The vectors were computed apart from this code, so agreement to nine digits is agreement of
formulas. The edges are what runs meet: classes without images, empty splits, dead neurons.
"""

import math

import numpy as np
import pytest
from reference import VECTORS

from fedapp.analysis.formulas import accuracy, features, weights
from fedapp.results import class_accuracy
from fedapp.runtime.process.evaluation import accuracy_by_class

METRICS, FACTORS = VECTORS["metrics"], VECTORS["fedfn_factors"]
F_LOCAL, F_GLOBAL = (np.array(VECTORS["inputs"][k]) for k in ("f_local", "f_global"))
ETF = np.array(VECTORS["etf"]["V_rows_are_classes"])
LABELS = np.array(VECTORS["inputs"]["y"])
HISTORY = np.array(METRICS["class_acc_rounds_x_classes"])
LAST, COUNTS = HISTORY[-1], np.array([35.0, 15.0, 0.0])  # shares .7, .3, 0
CLOSE = {"rel": 1e-9, "abs": 1e-12}


def factors() -> features.FourFactors:
    of = [np.array(FACTORS[key]) for key in ("features", "labels", "classifier")]
    return features.four_factors(*of)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (lambda: class_accuracy.forgetting(HISTORY), METRICS["forgetting"]),
        (lambda: class_accuracy.consistency(HISTORY), METRICS["consistency_consecutive"]),
        (lambda: accuracy.in_local_accuracy(LAST, COUNTS), METRICS["in_local_acc_last"]),
        (lambda: accuracy.out_local_accuracy(LAST, COUNTS), METRICS["out_local_acc_last"]),
        (lambda: features.alignment(F_LOCAL, LABELS, ETF).mean(), METRICS["alignment_local"]),
        (lambda: features.alignment(F_GLOBAL, LABELS, ETF).mean(), METRICS["alignment_global"]),
        (
            lambda: features.drift(F_LOCAL, F_GLOBAL).distance.mean(),
            METRICS["feature_distance_L2_mean"],
        ),
        (
            lambda: features.drift(F_LOCAL, F_GLOBAL).angle.mean(),
            METRICS["feature_angle_rad_mean"],
        ),
        (
            lambda: features.drift(F_LOCAL, F_GLOBAL).norm_difference.mean(),
            METRICS["norm_diff_local_minus_global"],
        ),
        (
            lambda: weights.distribution_distance(LAST, COUNTS, 2),
            METRICS["distribution_distance"]["value"],
        ),
        (lambda: factors().weight_similarity, FACTORS["weight_similarity"]),
        (lambda: factors().inter_class, FACTORS["inter_class"]),
        (lambda: factors().intra_class, FACTORS["intra_class"]),
        (lambda: factors().prototype_weight, FACTORS["proto_weight_alignment_cos"]),
        (
            lambda: features.prototypes(
                np.array(FACTORS["features"]), np.array(FACTORS["labels"]), 2
            ),
            FACTORS["prototypes"],
        ),
        (
            lambda: np.mean(weights.norm_means(np.array(FACTORS["features"]), np.arange(4) < 2)),
            FACTORS["feature_norm_mean"],
        ),
    ],
)
def test_measure_equals_the_specification(value, expected):
    assert np.asarray(value()) == pytest.approx(np.asarray(expected), **CLOSE)


def test_weight_alignment_equals_the_specification():
    published = METRICS["weight_alignment"]
    one = weights.class_preference(np.array(published["mean_activation_neurons_x_classes_modelA"]))
    other = weights.class_preference(np.array(published["modelB"]))
    assert one.tolist() == published["pref_A"]
    assert other.tolist() == published["pref_B"]
    assert weights.weight_alignment(one, other) == published["alignment"]


def test_gradient_diversity_equals_the_specification():
    diversity = weights.GradientDiversity()
    for gradient in METRICS["gradient_diversity"]["grads"]:
        diversity.add({"a": np.array(gradient[:1]), "b": np.array(gradient[1:])})
    assert diversity.value() == pytest.approx(METRICS["gradient_diversity"]["value"], **CLOSE)


def test_growing_accuracy_forgets_nothing():
    growing = np.array([[0.1, 0.2], [0.3, 0.5], [0.4, 0.9]])
    assert class_accuracy.forgetting(growing) == pytest.approx(-0.25)


def test_in_and_out_local_accuracy_agree_for_a_client_with_all_classes_alike():
    counts = np.full(3, 7.0)
    inside = accuracy.in_local_accuracy(LAST, counts)
    assert accuracy.out_local_accuracy(LAST, counts) == pytest.approx(inside)


def test_the_weight_of_classes_without_test_images_is_divided_over_the_others():
    lacking = np.array([0.5, 1.0, np.nan])
    assert accuracy.in_local_accuracy(lacking, COUNTS) == pytest.approx(0.65)
    assert accuracy.in_local_accuracy(lacking, np.array([1.0, 3.0, 9.0])) == pytest.approx(0.875)
    assert accuracy.out_local_accuracy(lacking, np.array([1.0, 3.0, 4.0])) == pytest.approx(
        (0.5 * 7 + 1.0 * 5) / 12
    )
    assert math.isnan(accuracy.in_local_accuracy(lacking, np.array([0.0, 0.0, 2.0])))


def test_class_accuracy_counts_each_class_for_itself():
    found = accuracy_by_class(np.array([0, 0, 1, 1]), np.array([1, 0, 1, 1]), 3)
    np.testing.assert_array_equal(found, [0.5, 1.0, np.nan])


def test_a_split_without_images_is_nan_and_not_zero():
    values, labels = np.array([1.0, 3.0]), np.array([0, 1])
    assert features.split_mean(values, labels, np.array([True, False])) == (1.0, 3.0)
    seen, unseen = features.split_mean(values, labels, np.array([True, True]))
    assert seen == 2.0
    assert math.isnan(unseen)


def test_features_of_a_model_at_rest_have_not_drifted():
    still = features.drift(F_LOCAL.astype(np.float32), F_LOCAL.astype(np.float32))
    assert not still.distance.any()
    assert still.angle.max() < 1e-7


def test_prototypes_of_normalised_features_weigh_directions_alike():
    rows, labels = np.array([[10.0, 0.0], [0.0, 1.0]]), np.array([0, 0])
    plain = features.four_factors(rows, labels, np.eye(2))
    normalised = features.four_factors(rows, labels, np.eye(2), normalise=True)
    assert plain.prototype_weight[0] > 0.99
    assert normalised.prototype_weight[0] == pytest.approx(math.sqrt(0.5))


def test_scalars_leave_out_a_class_without_images():
    rows = np.array([[1.0, 0.0], [0.0, 1.0]])
    found = features.four_factors(rows, np.array([0, 1]), np.eye(3)[:, :2]).scalars()
    assert found["inter_class"] == 0.0
    assert found["intra_class"] == 1.0


def test_preferences_come_from_mean_activations():
    activations = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 3.0], [5.0, 0.0]], dtype=np.float32)
    by_class = weights.class_activation(activations, np.array([0, 0, 1, 1]), 3)
    np.testing.assert_allclose(by_class[:, :2], [[1.0, 2.5], [0.0, 1.5]])
    assert weights.class_preference(by_class).tolist() == [1, 1]


def test_distance_of_models_is_taken_over_all_arrays():
    one = {"a": np.array([3.0], np.float32), "b": np.array([[4.0]], np.float32)}
    none = {name: np.zeros_like(array) for name, array in one.items()}
    assert weights.weight_divergence(one, none, 2) == 5.0
    assert weights.weight_divergence(one, none, 1) == 7.0


def test_distance_of_distributions_is_taken_in_the_norm_that_is_asked_for():
    known, counts = np.array([0.9, 0.3]), np.array([0, 10])
    assert weights.distribution_distance(known, counts, 1) == pytest.approx(1.5)
    assert weights.distribution_distance(known, counts, 2) == pytest.approx(math.sqrt(2) * 0.75)


def test_correlation_is_signed_and_undefined_for_a_constant():
    assert weights.pearson([1, 2, 3], [2, 4, 6]) == pytest.approx(1)
    assert weights.pearson([1, 2, np.nan, 3], [3, 2, 0, 1]) == pytest.approx(-1)
    assert math.isnan(weights.pearson([1, 1], [2, 3]))


def test_equal_updates_have_diversity_one_and_orthogonal_ones_their_number():
    equal, apart = weights.GradientDiversity(), weights.GradientDiversity()
    for k in range(3):
        equal.add({"w": np.ones(3)})
        apart.add({"w": np.eye(3)[k]})
    assert equal.value() == pytest.approx(1)
    assert apart.value() == pytest.approx(3)


def test_a_model_that_is_never_right_has_no_distribution():
    assert math.isnan(weights.distribution_distance(np.zeros(3), COUNTS, 1))
