"""Client-level differential privacy: updates of a bounded norm, and Gaussian noise on their sum.

An update is a client's model minus the received one. If no update is longer than the norm C, one
client changes the sum by at most 2 C, and noise of standard deviation z C on the sum (multiplier z)
hides which data it had. Either the server clips and adds the noise (`robust.py`), or, where masks
hide the updates from it, each node clips its clients' updates and adds a share of the noise.
"""

import math
import os

import numpy as np

from strategies.aggregate import (
    SMALLEST_RANGE,
    Arrays,
    ExactSum,
    UpdateRefused,
    WrongForm,
    difference,
    squared_norm,
)
from strategies.form import misfit

_STEP_BITS = 36  # between the deviation of a sum's noise and a step
_FEWEST_STEPS = 2.0**10  # in the deviation of a party's noise, so that rounding changes nothing


def clipped(update: Arrays, norm: float) -> Arrays:
    """Return the update, shortened to at most this norm."""
    length = math.sqrt(squared_norm(update))
    factor = min(1.0, norm / length) if length else 1.0
    return {name: factor * array for name, array in update.items()}


def with_noise(update: Arrays, share: float, deviation: float) -> Arrays:
    """Return the mean update times `share`, with Gaussian noise.

    The mean is over the whole cohort: a client that gave no update counts as zero. Otherwise the
    scale of the noise would tell how many failed, which may depend on one client's data.
    """
    return {
        name: share * array + _gaussian(array.shape, deviation) for name, array in update.items()
    }


def largest_noise(clients: int) -> float:
    """Return the largest deviation of the noise in a sum of so many clients.

    The sum holds values up to `SMALLEST_RANGE` per client, of which half are left for the noise. A
    value of it is hardly ever above 8 deviations. If no node is lost, the deviation is at most 1.6
    times the counted one: sqrt(n / (T - 1)) with n = 5 and T = 3.
    """
    return SMALLEST_RANGE * clients / 2 / (8 * 1.6)


def limited(
    total: ExactSum, model: Arrays, received: Arrays, norm: float, deviation: float
) -> Arrays:
    """Return a client's update for a sum of such updates: whole steps, and at most `norm` long.

    The steps depend on the standard deviation of the sum's noise; 0: it has none.

    Raises:
        WrongForm: its names or shapes are not the model's.
        UpdateRefused: the norm is so small that the sum cannot hold it.
    """
    if wrong := misfit(model, received):
        raise WrongForm(wrong)
    steps = _steps(total, deviation)
    room = norm - math.sqrt(sum(received[name].size * step**2 for name, step in steps.items()))
    if room <= 0:  # `room` leaves twice the largest error of rounding
        raise UpdateRefused(f"an update of norm {norm:g} is too small for the sums of this model")
    update = clipped(difference(model, received), room)
    return {name: np.rint(array / steps[name]) * steps[name] for name, array in update.items()}


def add_noise(total: ExactSum, deviation: float, parties: int) -> None:
    """Add one party's share of Gaussian noise to a sum of `limited` updates, in place.

    The noise of `parties` - 1 parties has the standard deviation `deviation`, because each party
    can subtract its own. The sum consists of whole steps, so noise that is rounded to steps is the
    rounding of a noisy sum, and tells nothing more. A step is so large that float64 has bits enough
    for a fraction of it, and so small that the sum of several roundings is as good as one (Kairouz,
    Liu and Steinke 2021, ICML, of discrete Gaussians).

    Raises:
        UpdateRefused: the deviation is too small for the sum.
    """
    own, steps = deviation / math.sqrt(parties - 1), _steps(total, deviation)
    for name, step in steps.items():
        if own < _FEWEST_STEPS * step:
            raise UpdateRefused(f"noise of deviation {deviation:g} is too small for '{name}'")
    for name, values in total.sums.items():
        whole = np.rint(_gaussian(values.shape, own / steps[name])).astype(np.int64)
        values += whole * int(steps[name] * 2.0 ** total.exponents[name])


def _gaussian(shape: tuple[int, ...], deviation: float) -> np.ndarray:
    """Return Gaussian values of random bits of the operating system (Box and Muller 1958).

    They do not come from the run's seed, so that nobody can subtract them, nor from a generator
    whose state some of them would tell.
    """
    count = math.prod(shape)
    pairs = (count + 1) // 2
    bits = np.frombuffer(os.urandom(16 * pairs), np.uint64).reshape(2, pairs)
    radius = np.sqrt(-2.0 * np.log((bits[0].astype(np.float64) + 1.0) * 2.0**-64))
    angle = bits[1] * (2.0 * math.pi * 2.0**-64)
    values = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
    return deviation * values[:count].reshape(shape)


def _steps(total: ExactSum, deviation: float) -> dict[str, float]:
    """Return the step of each tensor of a sum, a power of two.

    It is the sum's own resolution, or 2^-36 to 2^-37 of the noise's deviation where that is more.
    """
    least = 2.0 ** (math.floor(math.log2(deviation)) - _STEP_BITS) if deviation else 0.0
    return {name: max(2.0**-bits, least) for name, bits in total.exponents.items()}
