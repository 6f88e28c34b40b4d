"""Models whose features are dead, or not finite, are measured and drawn all the same."""

import numpy as np

from fedapp.analysis.measures.pictures import flat_map
from fedapp.results.plots import measure_plots


def drawn(word: str, model: dict) -> str:
    """Draw one round's measure of one run, and return all its texts."""
    entry = {"round": 1, "measures": {word: {"model": model, "clients": []}}}
    figure = measure_plots.draw(word, [("run", [entry])])
    axes = figure.axes
    return " ".join(t for a in axes for t in (a.get_title("left"), a.get_xlabel(), a.get_ylabel()))


def test_equal_features_are_one_point_and_infinite_ones_have_no_place():
    assert np.array_equal(flat_map(np.full((40, 8), 0.3, np.float32), 0), np.zeros((40, 2)))
    some = np.ones((40, 8), np.float32)
    some[3, 1] = np.inf
    assert np.isnan(flat_map(some, 0)).all()


def test_a_map_without_places_is_drawn():
    points = {"global": [[None, None]] * 4, "client 0": [[0.0, 0.0]] * 4}
    assert "client 0" in drawn("t-sne", {"points": points, "labels": [0, 1, 2, 3]})
    assert "By class" in drawn("t-sne-locals", {"points": points, "labels": [0, 1, 2, 3]})


def test_factors_that_are_not_finite_are_drawn():
    square, row = [[1.0, None], [None, 1.0]], [None, 0.5]
    model = {"weight_similarity": None, "inter_class": 0.25,
             "weight_similarity_matrix": square, "inter_class_matrix": square,
             "intra_class_by_class": row, "prototype_weight_by_class": row}  # fmt: skip
    text = drawn("four-factors", model)
    assert "mean cosine not finite" in text
    assert "mean cosine 0.25" in text


def test_a_landscape_without_finite_losses_is_drawn():
    flat = [{"radius": r, "loss": None, "std": None} for r in (0.0, 0.1)]
    model = {"flatness": flat, "slice": [[None] * 3] * 3, "span": 0.2,
             "curvature_first": None, "curvature_second": 2.0}  # fmt: skip
    text = drawn("landscape", model)
    assert "eigenvalue not finite" in text
    assert "Second (2)" in text
