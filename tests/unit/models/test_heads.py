"""Heads: the geometry of the frozen ones, the exactness of their seeds, and what is trained."""

import copy
import hashlib
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import VECTORS, tensor
from torch import Tensor
from torch.nn import functional as F

from fedapp.core.errors import UserError
from fedapp.models.heads import (
    HEADS,
    Head,
    _gaussian,
    _orthonormal_columns,
    build_head,
    orthonormal,
    simplex_etf,
    simplex_etf_from_basis,
)

Build = Callable[[int, int, int], Tensor]
FEATURES = {"local": VECTORS["inputs"]["f_local"], "global": VECTORS["inputs"]["f_global"]}


def close(actual: Tensor, expected: Tensor, atol: float = 1e-12) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=atol)


def test_etf_matches_vectors() -> None:
    frame, published = simplex_etf_from_basis(tensor(VECTORS["inputs"]["U"])), VECTORS["etf"]
    close(frame, tensor(published["V_rows_are_classes"]))
    close(frame @ frame.T, tensor(published["gram"]))
    close(frame.norm(dim=1), tensor(published["row_norms"]))
    close(frame.sum(dim=0), tensor(published["sum_of_rows"]))


@pytest.mark.parametrize("model", FEATURES)
@pytest.mark.parametrize("kind", ["linear", "etf"])
def test_logits_match_vectors(kind: str, model: str) -> None:
    inputs = VECTORS["inputs"]
    head = {
        "linear": Head(tensor(inputs["W"]), tensor(inputs["b"])),
        "etf": Head(tensor(VECTORS["etf"]["V_rows_are_classes"]), frozen=True),
    }[kind]
    close(head(tensor(FEATURES[model])), tensor(VECTORS["logits"][f"{kind}_{model}"]))


SEEDS = st.integers(0, 2**63 - 1)
SIZES = st.integers(2, 40).flatmap(
    lambda classes: st.tuples(st.just(classes), st.integers(classes - 1, classes + 30))
)


@given(size=SIZES, seed=SEEDS)
@settings(max_examples=60, deadline=None)
def test_etf_is_equiangular_at_every_size_it_exists(size: tuple[int, int], seed: int) -> None:
    classes, width = size
    frame = simplex_etf(classes, width, seed)
    assert frame.dtype == torch.float32
    assert frame.shape == (classes, width)
    exact = frame.double()
    gram = torch.full((classes, classes), -1 / (classes - 1), dtype=torch.float64)
    close(exact @ exact.T, gram.fill_diagonal_(1), atol=1e-6)
    close(exact.sum(dim=0), torch.zeros(width, dtype=torch.float64), atol=1e-6)
    assert torch.linalg.matrix_rank(exact, atol=1e-4) == classes - 1
    assert torch.equal(frame, simplex_etf(classes, width, seed))


@given(classes=st.integers(1, 40), extra=st.integers(0, 30), seed=SEEDS)
@settings(max_examples=40, deadline=None)
def test_orthonormal_rows_are_the_sign_fixed_qr_of_a_gaussian(
    classes: int, extra: int, seed: int
) -> None:
    rows = orthonormal(classes, classes + extra, seed)
    exact = rows.double()
    close(exact @ exact.T, torch.eye(classes, dtype=torch.float64), atol=1e-6)
    generator = torch.Generator().manual_seed(seed)
    gaussian = torch.randn(classes + extra, classes, generator=generator, dtype=torch.float64)
    q, r = torch.linalg.qr(gaussian.float().double())
    close(exact, (q * r.diagonal().sign()).T, atol=1e-5)
    assert torch.equal(rows, orthonormal(classes, classes + extra, seed))


def test_orthonormal_columns_are_bit_equal_under_any_thread_count() -> None:
    # LAPACK's QR fails this: clients of one machine could hold another head than the server.
    gaussian = _gaussian(512, 100, seed=3)
    threads, columns = torch.get_num_threads(), []
    try:
        for count in (1, 2, 4):
            torch.set_num_threads(count)
            columns.append(_orthonormal_columns(gaussian))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(columns[0], columns[1])
    assert torch.equal(columns[0], columns[2])


@pytest.mark.parametrize(
    ("kind", "digest"),
    [
        ("frozen-random", "9569da5b46c95ac7"),
        ("orthonormal", "d180c64069569aef"),
        ("etf", "b7a92061eb5a9893"),
    ],
)
def test_a_seed_gives_the_same_bits_on_every_machine(kind: str, digest: str) -> None:
    state = build_head(kind, 512, 100, seed=0).state_dict()
    content = b"".join(value.numpy().tobytes() for value in state.values())
    assert hashlib.sha256(content).hexdigest()[:16] == digest


@pytest.mark.parametrize("build", [simplex_etf, orthonormal])
def test_different_seeds_give_different_frames(build: Build) -> None:
    assert (build(5, 8, 1) - build(5, 8, 2)).abs().max() > 0.05


@pytest.mark.parametrize(
    ("build", "classes", "width"),
    [(simplex_etf, 10, 8), (simplex_etf, 1, 4), (orthonormal, 10, 9)],
)
def test_impossible_geometry_is_a_user_error_of_one_sentence(
    build: Build, classes: int, width: int
) -> None:
    with pytest.raises(UserError, match=f"{classes} classes on {width} features") as error:
        build(classes, width, 0)
    assert str(error.value).count(".") == 1


# kind: (bias, normalise, names of what is trained)
EXPECTED = {
    "linear": (True, False, {"weight", "bias"}),
    "frozen-random": (True, False, set()),
    "orthonormal": (False, True, set()),
    "etf": (False, False, set()),
    "etf-scaled": (False, True, {"scale"}),
    "normalised-linear": (False, True, {"weight"}),
    "cosine": (False, True, {"weight", "scale"}),
}


def test_every_head_is_expected() -> None:
    assert set(HEADS) == set(EXPECTED)


@pytest.mark.parametrize("kind", HEADS)
def test_kind_has_its_bias_normalisation_and_trained_parameters(kind: str) -> None:
    has_bias, normalise, trained = EXPECTED[kind]
    head = build_head(kind, feature_dim=12, num_classes=5, seed=1)
    assert head.weight.shape == (5, 12)
    assert head.weight.is_contiguous()
    assert (head.bias is not None) == has_bias
    assert {name for name, value in head.named_parameters() if value.requires_grad} == trained
    assert head.frozen == (not trained & {"weight"})
    features = torch.randn(3, 12, generator=torch.Generator().manual_seed(0))
    inputs = features / features.norm(dim=1, keepdim=True) if normalise else features
    offset = head.bias if head.bias is not None else 0.0
    rows = F.normalize(head.weight) if kind == "cosine" else head.weight
    torch.testing.assert_close(head(features), inputs @ rows.T + offset)


@pytest.mark.parametrize("kind", HEADS)
def test_build_is_a_function_of_the_seed_and_leaves_global_randomness_alone(kind: str) -> None:
    before = torch.get_rng_state()
    state = [build_head(kind, 12, 5, seed).state_dict() for seed in (7, 7, 8)]
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(state[0][name], state[1][name]) for name in state[0])
    assert not torch.equal(state[0]["weight"], state[2]["weight"])


def test_linear_heads_share_one_default_initialisation() -> None:
    kinds = ("linear", "frozen-random", "normalised-linear")
    heads = [build_head(kind, 64, 50, seed=3) for kind in kinds]
    assert all(torch.equal(head.weight, heads[0].weight) for head in heads)
    values = heads[0].weight.detach().flatten().numpy() * 8  # nn.Linear: uniform in +-1/sqrt(64)
    assert np.abs(values).max() <= 1
    assert abs(values.mean()) < 0.05
    assert values.std() == pytest.approx(1 / 3**0.5, rel=0.05)
    assert torch.equal(heads[0].bias, heads[1].bias)
    assert heads[0].bias.abs().max() <= 1 / 8
    assert heads[0].bias.std() > 0.03


def test_unknown_kind_names_the_choices() -> None:
    with pytest.raises(UserError, match=r"'sphere'.*normalised-linear"):
        build_head("sphere", 12, 5, 0)


@pytest.mark.parametrize("kind", HEADS)
def test_scale_multiplies_the_logits(kind: str) -> None:
    features = torch.randn(3, 12, generator=torch.Generator().manual_seed(0))
    plain, scaled = (build_head(kind, 12, 5, 1, scale=scale) for scale in (1.0, 15.0))
    torch.testing.assert_close(scaled(features), 15 * plain(features))


@pytest.mark.parametrize("kind", ["etf", "etf-scaled"])
def test_scale_is_learnt_only_where_the_kind_says_so(kind: str) -> None:
    head = build_head(kind, 12, 5, 1)
    features = torch.ones(3, 12, requires_grad=True)
    head(features).square().sum().backward()
    assert ("scale" in head.state_dict()) == (kind == "etf-scaled")
    assert head.weight.grad is None
    if kind == "etf-scaled":
        assert isinstance(head.scale, torch.nn.Parameter)
        assert head.scale.item() == 1
        assert head.scale.grad is not None
        assert head.scale.grad.abs() > 0


def test_normalised_head_ignores_feature_length_and_survives_zero_features() -> None:
    head = build_head("normalised-linear", 12, 5, 1)
    features = torch.randn(3, 12, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(head(1000 * features), head(features))
    assert torch.equal(head(torch.zeros(2, 12)), torch.zeros(2, 5))


def test_frozen_head_does_not_move_and_can_be_unfrozen() -> None:
    head = build_head("frozen-random", 12, 5, 1)
    before = copy.deepcopy(head.state_dict())
    features = torch.ones(3, 12, requires_grad=True)
    head(features).sum().backward()
    assert features.grad is not None
    assert head.weight.grad is None
    torch.optim.SGD(head.parameters(), lr=1.0, weight_decay=0.1).step()
    assert all(torch.equal(before[name], value) for name, value in head.state_dict().items())
    head.requires_grad_(True)
    assert not head.frozen
    assert "frozen=False" in repr(head)
