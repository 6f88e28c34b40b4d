"""Quantised uploads: the arithmetic of one update, and replies that no client has encoded."""

import numpy as np
import pytest

from strategies.aggregate import UpdateRefused, WrongForm
from strategies.rounds.quantised import Codec, pack, unpack

BITS = [2, 4, 8]
LEVELS = {2: 1, 4: 7, 8: 127}
RECEIVED = {
    "w": np.linspace(-2, 3, 35, dtype=np.float32).reshape(5, 7),
    "b": np.full((), 0.5, np.float32),
    "none": np.zeros((0, 3), np.float32),
    "running_mean": np.ones(4, np.float32),
}
TRAINED = ("w", "b", "none")


def rng(number: int = 0) -> np.random.Generator:
    return np.random.default_rng(number)


def model(size: float = 0.01) -> dict[str, np.ndarray]:
    draw = rng(9)
    return {
        name: (a + size * draw.standard_normal(a.shape)).astype(np.float32)
        for name, a in RECEIVED.items()
    }


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 5, 7, 8, 9, 100, 1023])
def test_packed_codes_come_back(bits, size):
    codes = rng(size).integers(0, 2**bits, size).astype(np.uint8)
    packed = pack(codes, bits)
    assert (packed.dtype, packed.size) == (np.uint8, -(-size * bits // 8))
    np.testing.assert_array_equal(unpack(packed, bits, size), codes)


@pytest.mark.parametrize("bits", BITS)
def test_the_mean_of_many_roundings_is_the_update_and_none_is_off_by_a_level(bits):
    codec, draw, times = Codec(bits, ("w",)), rng(), 4000
    received = {"w": np.zeros(40, np.float32)}
    update = rng(1).standard_normal(40).astype(np.float32)
    read = np.stack(
        [
            codec.decode(codec.encode({"w": update}, received, draw), received)["w"]
            for _ in range(times)
        ]
    )
    step = np.abs(update).max() / LEVELS[bits]
    assert np.abs(read - update).max() < step
    # a rounding's deviation is at most half a step
    assert np.abs(read.mean(0) - update).max() < 5 * step / 2 / np.sqrt(times)
    widest = np.abs(update).argmax()
    np.testing.assert_allclose(read[:, widest], update[widest], rtol=1e-6)
    assert len(np.unique(read)) <= 2 * LEVELS[bits] + 1


@pytest.mark.parametrize("bits", BITS)
def test_what_is_sent_has_the_form_that_is_foretold(bits):
    codec = Codec(bits, TRAINED)
    sent = codec.encode(model(), RECEIVED, rng())
    form = codec.form(RECEIVED)
    assert {n: (a.dtype, a.shape) for n, a in sent.items()} == {
        n: (a.dtype, a.shape) for n, a in form.items()
    }
    sizes = {name: array.nbytes for name, array in form.items()}
    assert sizes == {"w": 4 + -(-35 * bits // 8), "b": 5, "none": 4, "running_mean": 16}


def test_tensors_that_are_not_trained_and_whole_models_stay_as_they_are():
    trained = model()
    read = Codec(4, TRAINED).decode(Codec(4, TRAINED).encode(trained, RECEIVED, rng()), RECEIVED)
    assert list(read) == list(trained)
    np.testing.assert_array_equal(read["running_mean"], trained["running_mean"])
    assert {name: (a.dtype, a.shape) for name, a in read.items()} == {
        name: (a.dtype, a.shape) for name, a in RECEIVED.items()
    }
    whole = Codec()
    assert whole.encode(trained, RECEIVED, rng()) is trained
    assert whole.decode(trained, RECEIVED) is trained
    assert whole.form(RECEIVED).keys() == RECEIVED.keys()


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("size", [0.0, 1e-44, 1e30])
def test_an_update_of_zeros_is_the_received_model_and_no_size_breaks_the_arithmetic(bits, size):
    codec, received = Codec(bits, ("w",)), {"w": np.zeros(3, np.float32)}
    update = np.array([size, 0, -size], np.float32)
    read = codec.decode(codec.encode({"w": update}, received, rng()), received)["w"]
    np.testing.assert_allclose(read, update, rtol=1e-6, atol=1e-44)
    assert read[1] == 0


def test_bytes_depend_on_the_generator_only():
    codec = Codec(4, TRAINED)
    one, other, third = (codec.encode(model(), RECEIVED, rng(seed))["w"] for seed in (3, 3, 4))
    assert one.tobytes() == other.tobytes() != third.tobytes()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_an_update_that_is_not_finite_is_refused(bad):
    spoilt = {**model(), "b": np.array(bad, np.float32)}
    with pytest.raises(UpdateRefused, match="the update of 'b' has non-finite values"):
        Codec(4, TRAINED).encode(spoilt, RECEIVED, rng())
    far = {"w": np.full(2, 3e38, np.float32)}, {"w": np.full(2, -3e38, np.float32)}
    with pytest.raises(UpdateRefused, match="non-finite"):
        Codec(4, ("w",)).encode(*far, rng())


def scaled(by: float) -> np.ndarray:
    """An update "b" of 4 bits with this scale."""
    return np.concatenate([np.array([by], "<f4").view(np.uint8), np.zeros(1, np.uint8)])


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"w": None}, WrongForm, "'w' is missing"),
        ({"running_mean": None}, WrongForm, "'running_mean' is missing"),
        ({"x": np.zeros(3)}, WrongForm, "'x' is unexpected"),
        ({"w": np.zeros(21, np.uint8)}, WrongForm, r"'w' has shape \(21,\) instead of \(22,\)"),
        ({"w": np.zeros((5, 7), np.float32)}, WrongForm, r"'w' has shape \(5, 7\)"),
        ({"w": np.zeros(22, np.float32)}, WrongForm, "'w' is of float32, not of the codes of 4"),
        ({"w": np.full(22, "x")}, WrongForm, "'w' is of <U1"),
        ({"none": np.zeros(0, np.uint8)}, WrongForm, "'none' has shape"),
        ({"b": scaled(np.nan)}, UpdateRefused, "the scale of 'b' is nan, not a finite"),
        ({"b": scaled(np.inf)}, UpdateRefused, "the scale of 'b' is inf"),
        ({"b": scaled(-1.0)}, UpdateRefused, "the scale of 'b' is -1"),
        (
            {"w": np.concatenate([scaled(1.0)[:4], np.full(18, 0xFF, np.uint8)])},
            UpdateRefused,
            "'w' has a code above 14",
        ),
    ],
)
def test_what_no_client_has_encoded_is_refused(change, kind, words):
    codec = Codec(4, TRAINED)
    sent = {**codec.encode(model(), RECEIVED, rng()), **change}
    with pytest.raises(kind, match=words):
        codec.decode({name: a for name, a in sent.items() if a is not None}, RECEIVED)


def test_the_largest_scale_is_read_without_a_warning():
    """The model is then refused as every other with such values."""
    codec = Codec(4, ("b",))
    with np.errstate(all="raise"):
        largest = scaled(np.finfo(np.float32).max)
        assert codec.decode({"b": largest}, {"b": np.zeros((), np.float32)})["b"] < -1e38
        received = {"b": np.full((), -3e38, np.float32)}
        assert np.isinf(codec.decode({"b": largest}, received)["b"])
