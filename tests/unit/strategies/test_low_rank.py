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
