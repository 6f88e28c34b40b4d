"""FedKD's codec: the rank rule, the schedule, and what comes back from compressed matrices."""

import numpy as np
import pytest
from reference import HETEROGENEOUS

from strategies.low_rank import LowRank, rank


def test_the_rank_is_the_smallest_with_the_energy():
    vector = HETEROGENEOUS["fedkd_rank"]
    values = np.array(vector["singular_values"])
    assert {t: rank(values, float(t)) for t in vector["ranks"]} == vector["ranks"]


def test_the_energy_grows_with_the_rounds():
    vector = HETEROGENEOUS["fedkd_energy_schedule"]
    codec = LowRank(vector["T_start"], vector["T_end"], vector["rounds"])
    for before, energy in vector["values"].items():
        assert codec.energy(int(before) + 1) == pytest.approx(energy, rel=1e-12)


def test_what_comes_back_has_the_asked_energy():
    rng = np.random.default_rng(0)
    factors = rng.normal(size=(40, 3)), rng.normal(size=(3, 54))
    kernel = (factors[0] @ factors[1] + 0.01 * rng.normal(size=(40, 54))).reshape(40, 6, 3, 3)
    arrays = {
        "kernel": kernel.astype(np.float32),
        "dense": rng.normal(size=(30, 30)).astype(np.float32),
        "zero": np.zeros((20, 20), np.float32),
        "bias": np.ones(40, np.float32),
    }
    codec = LowRank(0.99, 0.99, 1)
    sent = codec.compress(arrays, 1)
    assert set(sent) == {"kernel.u", "kernel.s", "kernel.v", "dense", "zero", "bias"}
    assert sum(a.nbytes for a in sent.values()) < sum(a.nbytes for a in arrays.values())
    back = codec.decompress(sent, arrays)
    lost = np.sum((back["kernel"] - arrays["kernel"]) ** 2) / np.sum(arrays["kernel"] ** 2)
    assert back["kernel"].shape == (40, 6, 3, 3)
    assert lost <= 0.01 + 1e-6
    for name in ("dense", "zero", "bias"):
        np.testing.assert_array_equal(back[name], arrays[name])


def test_parts_that_do_not_fit_are_refused():
    codec, shapes = LowRank(0.5, 0.5, 1), {"w": np.zeros((4, 6), np.float32)}
    good = codec.compress({"w": np.outer(np.ones(4), np.ones(6)).astype(np.float32)}, 1)
    assert codec.decompress(good, shapes)["w"].shape == (4, 6)
    with pytest.raises(ValueError, match=r"w\.s"):
        codec.decompress({k: v for k, v in good.items() if k != "w.s"}, shapes)
    with pytest.raises(ValueError, match="factors of 'w'"):
        codec.decompress({**good, "w.v": good["w.v"][:, :5]}, shapes)


def htfllib_rank(values, energy):
    """Return k as HtFLlib's loop finds it, for singular values [..., r]."""
    squares = np.square(values).reshape(-1, values.shape[-1]).sum(axis=0)
    for k in range(len(squares)):
        if squares[:k].sum() > energy * squares.sum():
            return k
    return 0


@pytest.mark.parametrize("shape", [(12, 30), (30, 12), (8, 4, 5, 5), (6, 3, 3, 3)])
@pytest.mark.parametrize("energy", [0.3, 0.6, 0.9])
def test_htfllibs_truncation_takes_every_matrix_and_kernel_to_one_rank(shape, energy):
    array = np.random.default_rng(3).normal(size=shape).astype(np.float32)
    codec, shapes = LowRank(energy, energy, 1, "htfllib"), {"w": array}
    sent = codec.compress(shapes, 1)
    left, values, right = np.linalg.svd(array, full_matrices=False)
    k = htfllib_rank(values, energy)
    assert sent["w.s"].shape == (*values.shape[:-1], k)
    expected = (left[..., :k] * values[..., None, :k]) @ right[..., :k, :]
    np.testing.assert_allclose(codec.decompress(sent, shapes)["w"], expected, atol=1e-5)


def test_htfllibs_truncation_zeroes_a_layer_that_needs_its_full_rank():
    arrays = {
        "head": np.eye(10, 40, dtype=np.float32),  # nine of ten equal values hold 90 %
        "pointwise": np.ones((4, 4, 1, 1), np.float32),
        "row": np.ones((1, 40), np.float32),
        "bias": np.ones(10, np.float32),
        "zero": np.zeros((9, 9), np.float32),
    }
    codec = LowRank(0.95, 0.95, 1, "htfllib")
    back = codec.decompress(codec.compress(arrays, 1), arrays)
    assert not back["head"].any()
    assert not back["pointwise"].any()
    for name in ("row", "bias", "zero"):
        np.testing.assert_array_equal(back[name], arrays[name])
    usual = LowRank(0.95, 0.95, 1)
    kept = usual.decompress(usual.compress(arrays, 1), arrays)["head"]
    assert np.square(kept).sum() >= 0.95 * 10


def test_factors_by_kernel_that_do_not_fit_are_refused():
    codec, shapes = LowRank(0.5, 0.5, 1, "htfllib"), {"w": np.ones((4, 3, 3, 3), np.float32)}
    good = codec.compress(shapes, 1)
    for part, bad in (("w.u", good["w.u"][:3]), ("w.s", np.float32(1.0)), ("w.v", good["w.u"])):
        with pytest.raises(ValueError, match="factors of 'w'"):
            codec.decompress({**good, part: np.asarray(bad)}, shapes)
    with pytest.raises(ValueError, match="factors of 'w'"):
        LowRank(0.5, 0.5, 1).decompress(good, shapes)
