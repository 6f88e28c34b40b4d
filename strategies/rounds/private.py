"""Client-level differential privacy: updates of a bounded norm, and Gaussian noise on their sum.

An update is a client's model minus the received one. If no update is longer than the norm C, one
client changes the sum by at most 2 C, and noise of standard deviation z C on the sum (multiplier z)
hides which data it had. Either the server clips and adds the noise (`robust.py`), or, where masks
hide the updates from it, each node clips its clients' updates and adds a share of the noise.
"""

import math

import numpy as np

from strategies.aggregate import (
    SMALLEST_RANGE,
    Arrays,
    Checked,
    ExactSum,
    UpdateRefused,
    squared_norm,
)

_FINEST = 2.0**10  # steps of the sum's grid that the noise must span, so that it is no coarser


def difference(model: Arrays, received: Arrays) -> Arrays:
    """Return a model minus the received one, in float64 and in the order of `received`."""
    return {name: model[name].astype(np.float64) - old for name, old in received.items()}


def clipped(update: Arrays, norm: float) -> Arrays:
    """Return the update, shortened to at most this norm."""
    length = math.sqrt(squared_norm(update))
    factor = min(1.0, norm / length) if length else 1.0
    return {name: factor * array for name, array in update.items()}


def with_noise(update: Arrays, share: float, deviation: float) -> Arrays:
    """Return the mean update times `share`, with Gaussian noise.

    The mean is over the whole cohort: a client that gave no update counts as zero. Otherwise the
    scale of the noise would tell how many failed, which may depend on one client's data. The noise
    is seeded by the operating system, not by the run's seed, so that nobody can subtract it.
    """
    random = np.random.default_rng()
    return {
        name: share * array + random.normal(0.0, deviation, array.shape)
        for name, array in update.items()
    }


def moved(received: Arrays, update: Arrays, share: float = 1.0) -> Arrays:
    """Return the received model plus `share` of an update, in the model's data types."""
    return {name: (old + share * update[name]).astype(old.dtype) for name, old in received.items()}


def largest_noise(clients: int) -> float:
    """Return the largest deviation of the noise in a sum of so many clients.

    The sum holds values up to `SMALLEST_RANGE` per client, of which half may be lost. The largest
    of 10^15 values of noise is below 8 deviations, each 1.4 times as large if no node is lost.
    """
    return SMALLEST_RANGE * (clients / 2) / (8 * 1.5)


def clipped_for(total: ExactSum, model: Arrays, received: Arrays, norm: float) -> Checked:
    """Return a client's update for a sum, in which it has at most this norm after rounding.

    Raises:
        UpdateRefused: the norm is so small that the sum's grid cannot hold it.
    """
    grid = sum(array.size * 4.0 ** -total.exponents[name] for name, array in total.sums.items())
    room = norm - math.sqrt(grid)  # twice the largest error of rounding to the nearest step
    if room <= 0:
        raise UpdateRefused(f"an update of norm {norm:g} is too small for the sums of this model")
    return total.check(clipped(difference(model, received), room))


def add_noise(total: ExactSum, deviation: float) -> None:
    """Add Gaussian noise of this standard deviation to a sum, rounded to its grid, in place.

    The sum is of integers, so rounding the noise is the same as rounding the noisy sum, which tells
    nothing more. Sums of several nodes' rounded noise are as good as one rounded noise, because
    the deviation spans many steps (Kairouz, Liu and Steinke 2021, ICML, of discrete Gaussians).

    Raises:
        UpdateRefused: the deviation is too small for the sum's grid.
    """
    random = np.random.default_rng()
    scales = {name: deviation * 2.0 ** total.exponents[name] for name in total.sums}
    for name, scale in scales.items():
        if scale < _FINEST:
            raise UpdateRefused(f"noise of deviation {deviation:g} is too small for '{name}'")
    for name, values in total.sums.items():
        values += np.rint(random.normal(0.0, scales[name], values.shape)).astype(np.int64)
