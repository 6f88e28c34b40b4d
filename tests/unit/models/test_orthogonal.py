"""Orthogonal initialisation: the three cases, against known optima, and the same bits anywhere."""

import pytest
import torch
from reference import HETEROGENEOUS

from fedapp.models.heads import simplex_etf_from_basis
from fedapp.models.orthogonal import orthogonal_initialisation, separated

SEPARATION = HETEROGENEOUS["oi_separation_d_lt_C"]


def off_diagonal(rows: torch.Tensor) -> torch.Tensor:
    gram = rows.double() @ rows.double().T
    return gram[~torch.eye(len(rows), dtype=torch.bool)]


def test_gram_schmidt_gives_the_q_with_a_positive_diagonal():
    from fedapp.models.heads import _orthonormal_columns

    vector = HETEROGENEOUS["oi_qr"]
    gaussian = torch.tensor(vector["gaussian_d_by_C"], dtype=torch.float64)
    expected = torch.tensor(vector["W_C_by_d"], dtype=torch.float64)
    torch.testing.assert_close(_orthonormal_columns(gaussian).T, expected)


@pytest.mark.parametrize(("classes", "width"), [(10, 512), (100, 128), (5, 5)])
def test_enough_features_give_orthonormal_rows(classes, width):
    rows = orthogonal_initialisation(classes, width, 3)
    assert rows.dtype == torch.float32
    torch.testing.assert_close(rows @ rows.T, torch.eye(classes), atol=1e-5, rtol=0)
    assert torch.equal(rows, orthogonal_initialisation(classes, width, 3))
    assert not torch.equal(rows, orthogonal_initialisation(classes, width, 4))


@pytest.mark.parametrize(("width", "simplex"), [(3, False), (8, True)])
def test_one_feature_fewer_or_on_demand_gives_the_simplex(width, simplex):
    vector = HETEROGENEOUS["oi_simplex"]
    rows = orthogonal_initialisation(vector["C"], width, 0, simplex=simplex)
    expected = torch.full((12,), vector["gram_offdiag"], dtype=torch.float64)
    torch.testing.assert_close(off_diagonal(rows), expected, atol=1e-6, rtol=0)
    square = simplex_etf_from_basis(torch.eye(vector["C"], dtype=torch.float64))
    torch.testing.assert_close(off_diagonal(square), expected)


@pytest.mark.parametrize("case", SEPARATION["small_cases"], ids=lambda c: c["configuration"])
def test_fewer_features_reach_the_known_optimum(case):
    rows = separated(case["C"], case["d"], 0)
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(case["C"], dtype=torch.float64))
    assert float(off_diagonal(rows).max()) <= case["optimal_max_cosine"] + case["tolerance"]


def test_many_classes_are_further_apart_than_random_ones_with_any_number_of_threads():
    case = SEPARATION["large_cases"][1]
    rows = orthogonal_initialisation(case["C"], case["d"], 0)
    assert float(off_diagonal(rows).max()) < case["random_max_cos"] / 2
    torch.set_num_threads(2)
    try:
        assert torch.equal(rows, orthogonal_initialisation(case["C"], case["d"], 0))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def test_the_absolute_objective_avoids_opposite_pairs():
    signed, absolute = (separated(12, 8, 0, objective) for objective in ("signed", "abs"))
    assert float(off_diagonal(absolute).abs().max()) < 0.5
    assert float(off_diagonal(signed).abs().max()) > 0.9
