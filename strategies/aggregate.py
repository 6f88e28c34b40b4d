"""Means of client models that do not depend on the order of the replies, bit for bit.

Floating-point sums depend on their order, and the order of replies depends on the number of
workers, nodes and hosts. Models are therefore summed in 64-bit fixed point: every value is
multiplied by its weight and by a power of two that follows from the received global model, rounded
once, and added as an integer. Integer sums are exact, so any grouping (per client, per node, per
host) gives the same sum.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from strategies.form import misfit

Arrays = dict[str, np.ndarray]

_SUM_BITS = 62  # of 64, without the sign and one spare bit
_HEADROOM_BITS = 10  # a value may be 1024 times the global tensor's largest value, rounded up
_BUFFER_HEADROOM_BITS = 20  # running statistics change with the activations
_BUFFERS = ("running_mean", "running_var")
_SMALLEST_SCALE = 2.0**-4  # the scale of a tensor of zeros, such as a new bias
SMALLEST_RANGE = _SMALLEST_SCALE * 2**_HEADROOM_BITS  # the least limit of a client's values
_CHUNK = 1 << 15  # values per step of a long sum; intermediate results fit the CPU cache
_EXTRA_SCALE = 4.0  # of groups without a reference: allows values up to 4096
_SHIFTABLE = 2.0**51  # a smaller float64 plus _SHIFT has its nearest integer in the last bits
_SHIFT = 1.5 * 2.0**52
_SHIFT_BITS = np.float64(_SHIFT).view(np.int64)


class UpdateRefused(ValueError):  # noqa: N818 - a verdict about one client, not a program error
    """A client's arrays cannot be part of the mean; the message states the reason."""


class WrongForm(UpdateRefused):
    """Their names, shapes or types are not the model's: a mistake in a program, not in training."""


@dataclass(frozen=True)
class Checked:
    """One client's arrays that a sum accepts, with each one's largest absolute value."""

    arrays: Mapping[str, np.ndarray]
    peaks: Mapping[str, float]


class ExactSum:
    """The weighted sum of models close to a reference model, in int64 fixed point.

    The resolution is about 2**-38 of the largest value of each tensor for a cohort of 5,000
    examples, far below the spacing of float32.
    """

    def __init__(
        self,
        reference: Mapping[str, np.ndarray],
        total_weight: int,
        smallest: float = _SMALLEST_SCALE,
    ) -> None:
        """Prepare for a total weight of at most `total_weight` and for the shapes of `reference`.

        A tensor's values may be up to 1024 times the reference's largest value, or 1024 times
        `smallest` if that is larger, rounded up to a power of two. BatchNorm's statistics may be
        up to 2^20 times as large.
        """
        self._dtypes = {name: array.dtype for name, array in reference.items()}
        self._bounds = {name: _bound(name, array, smallest) for name, array in reference.items()}
        weight_bits = int(total_weight).bit_length()
        self.exponents = {
            name: _SUM_BITS - weight_bits - int(np.log2(bound))
            for name, bound in self._bounds.items()
        }
        self.sums: Arrays = {
            name: np.zeros(array.shape, np.int64) for name, array in reference.items()
        }
        self.weight = 0

    def add(self, arrays: Mapping[str, np.ndarray], weight: int) -> None:
        """Add one model with an integer weight; raises `UpdateRefused` if `check` does."""
        self.add_checked(self.check(arrays), weight)

    def add_checked(self, checked: Checked, weight: int) -> None:
        """Add one model that has passed `check`."""
        for name, array in checked.arrays.items():
            # weight * value has at most 24 + 29 significant bits, or is one whole step: exact
            scale = float(weight) * 2.0 ** self.exponents[name]
            _add_scaled(self.sums[name], array, scale, checked.peaks[name])
        self.weight += int(weight)

    def check(self, arrays: Mapping[str, np.ndarray]) -> Checked:
        """Return a model that can be added; raises `UpdateRefused` if it cannot."""
        self._check_shapes(arrays)
        for name, array in arrays.items():
            if array.dtype.kind != "f":
                raise WrongForm(f"'{name}' is of {array.dtype}, not of floating-point numbers")
        peaks = {name: float(largest(array)) for name, array in arrays.items()}
        for name, peak in peaks.items():
            if not np.isfinite(peak):
                raise UpdateRefused(f"'{name}' has non-finite values")
            if peak > self._bounds[name]:
                raise UpdateRefused(
                    f"'{name}' has a value of {peak:.3g}, more than the limit of "
                    f"{self._bounds[name]:.3g} for one round"
                )
        return Checked(arrays, peaks)

    def max_squared_distance(self, names: Iterable[str]) -> float:
        """Return a bound of ||w - r||^2 over these tensors for every model w that `add` accepts.

        r is the reference. The bound is loose: it assumes twice the largest value everywhere.
        """
        return float(sum(self.sums[name].size * (2 * self._bounds[name]) ** 2 for name in names))

    def check_partial(self, sums: Mapping[str, np.ndarray], weight: int) -> None:
        """Raise `UpdateRefused` unless `merge_checked` can add this partial sum."""
        self._check_shapes(sums)
        for name, array in sums.items():
            limit = int(weight) * int(self._bounds[name]) << max(self.exponents[name], 0)
            if array.dtype != np.int64 or int(largest(array)) > limit:
                raise UpdateRefused(f"the partial sum of '{name}' is out of range")

    def merge_checked(self, sums: Mapping[str, np.ndarray], weight: int) -> None:
        """Add a partial sum, of the same reference and total weight, that has been checked."""
        for name, array in sums.items():
            self.sums[name] += array
        self.weight += int(weight)

    def check_masked(self, sums: Mapping[str, np.ndarray]) -> None:
        """Raise `UpdateRefused` unless `merge_checked` can add this masked sum, modulo 2^64."""
        self._check_shapes(sums)
        for name, array in sums.items():
            if array.dtype != np.int64:
                raise UpdateRefused(f"the masked sum of '{name}' is of {array.dtype}, not int64")

    def mean(self) -> Arrays:
        """Return the weighted mean, in the reference's data types."""
        if self.weight <= 0:
            raise ValueError("no model was added, so there is no mean")
        return {
            name: np.asarray(
                total / (self.weight * 2.0 ** self.exponents[name]), self._dtypes[name]
            )
            for name, total in self.sums.items()
        }

    def _check_shapes(self, arrays: Mapping[str, np.ndarray]) -> None:
        if difference := misfit(arrays, self.sums):
            raise WrongForm(difference)


class GroupSums:
    """The exact sums of everything that a method averages: the model and further named groups.

    The model ("arrays") has the run's client weights. In every other group all weights are 1.
    """

    def __init__(
        self,
        model: Mapping[str, np.ndarray],
        groups: Mapping[str, Mapping[str, np.ndarray]],
        total_weight: int,
        cohort: int,
    ) -> None:
        """Prepare for a cohort; `groups` gives the shapes of the further groups.

        The groups have a fixed scale, on which server and nodes agree without communication. A node
        knows only its own values.
        """
        self.model = ExactSum(model, total_weight)
        self.groups = {name: _extra_sum(arrays, cohort) for name, arrays in groups.items()}

    def add_checked(self, model: Checked, groups: Mapping[str, Checked], weight: int) -> None:
        """Add one client that `check` has accepted."""
        self.model.add_checked(model, weight)
        for name, checked in groups.items():
            self.groups[name].add_checked(checked, 1)

    def check(
        self, model: Arrays, groups: Mapping[str, Arrays]
    ) -> tuple[Checked, dict[str, Checked]]:
        """Return a client's model and groups; raises `UpdateRefused` if they cannot be added."""
        self._check_names(groups)
        checked = {name: self.groups[name].check(arrays) for name, arrays in groups.items()}
        return self.model.check(model), checked

    def merge(
        self, model: Arrays, groups: Mapping[str, Arrays], weight: int, clients: int,
        masked: bool = False,
    ) -> None:  # fmt: skip
        """Add a node's partial sums over `clients` clients, or raise `UpdateRefused`.

        `masked` sums are added modulo 2^64. Only their form can be checked here, and the range of
        the opened sum of all nodes by `check_opened`.
        """
        self._check_names(groups)
        parts = [(self.model, model, weight)]
        parts += [(self.groups[name], arrays, clients) for name, arrays in groups.items()]
        for total, sums, count in parts:
            if masked:
                total.check_masked(sums)
            else:
                total.check_partial(sums, count)
        for total, sums, count in parts:
            total.merge_checked(sums, count)

    def check_opened(self, least: int = 0) -> None:
        """Raise `UpdateRefused` if the sums, without masks, are out of the range of their weight.

        `least` is a weight whose range they may use in any case, because they have noise.
        In range, they are the sums of a run without masks: each node's sum is at most weight *
        bound * 2^exponent, and the exponents are such that the cohort's total weight stays below
        2^62. So the true sum is an integer between -2^63 and 2^63, which is known modulo 2^64.
        """
        for total in (self.model, *self.groups.values()):
            total.check_partial(total.sums, max(least, total.weight))

    def _check_names(self, groups: Mapping[str, Arrays]) -> None:
        if groups.keys() != self.groups.keys():
            raise WrongForm(f"update.groups has {sorted(groups)}, averaged() {sorted(self.groups)}")


def difference(model: Arrays, received: Arrays) -> Arrays:
    """Return a model minus the received one, in float64 and in the order of `received`."""
    return {name: model[name].astype(np.float64) - old for name, old in received.items()}


def moved(received: Arrays, update: Arrays, share: float = 1.0) -> Arrays:
    """Return the received model plus `share` of an update, in the model's data types."""
    return {name: (old + share * update[name]).astype(old.dtype) for name, old in received.items()}


def squared_norm(arrays: Mapping[str, np.ndarray]) -> float:
    """Return the sum of the squares of all values."""
    return sum(float(np.sum(array**2)) for array in arrays.values())


def weighted_mean(models: Sequence[Mapping[str, np.ndarray]], weights: Sequence[int]) -> Arrays:
    """Return sum_i weights[i] * models[i] / sum(weights) per named array, for any order of models.

    Weights are non-negative integers (numbers of examples, or 1 for a uniform mean); FedAvg,
    McMahan et al. 2017, algorithm 1.
    """
    if len(models) != len(weights) or not models:
        raise ValueError(f"{len(models)} models and {len(weights)} weights have no weighted mean")
    reference = {
        name: np.max([np.abs(model[name]) for model in models], axis=0) for name in models[0]
    }
    total = ExactSum(reference, sum(weights))
    for model, weight in zip(models, weights, strict=True):
        total.add(model, weight)
    return total.mean()


def _extra_sum(arrays: Mapping[str, np.ndarray], cohort: int) -> ExactSum:
    """Return an empty sum in the shapes of `arrays`, whatever their values."""
    zeros = {name: np.zeros_like(array) for name, array in arrays.items()}
    return ExactSum(zeros, cohort, _EXTRA_SCALE)


def _bound(name: str, array: np.ndarray, smallest: float) -> float:
    """Return the largest absolute value that a client's tensor may have, a power of two."""
    peak = max(float(largest(array)), smallest)
    headroom = _BUFFER_HEADROOM_BITS if name.endswith(_BUFFERS) else _HEADROOM_BITS
    return float(2.0 ** (np.ceil(np.log2(peak)) + headroom))


def largest(array: np.ndarray) -> float | int:
    """Return the largest absolute value, 0 for an empty array, NaN if there is one; no copies."""
    if not array.size:
        return 0
    highest, lowest = array.max().item(), array.min().item()
    return highest if highest != highest else max(highest, -lowest)


def _add_scaled(total: np.ndarray, array: np.ndarray, scale: float, peak: float) -> None:
    """Add `array` times `scale`, in float64 and rounded to integers, to `total` (int64), in place.

    `peak` is the array's largest absolute value. This gives the same bits as one expression over
    the whole array and is several times as fast.
    """
    sums, values = total.reshape(-1), np.asarray(array).reshape(-1)
    scaled = np.empty(min(_CHUNK, len(sums)))
    for start in range(0, len(sums), _CHUNK):
        part = sums[start : start + _CHUNK]
        product = scaled[: len(part)]
        np.copyto(product, values[start : start + _CHUNK])
        np.multiply(product, scale, out=product)
        part += _rounded(product, peak * scale < _SHIFTABLE)


def _rounded(values: np.ndarray, small: bool) -> np.ndarray:
    """Return float64 values rounded to integers, half to even, as int64; overwrites the values.

    `small` says that all are below 2**51: then no value is converted, which takes longer.
    """
    if not small:
        return np.rint(values, out=values).astype(np.int64)
    whole = np.add(values, _SHIFT, out=values).view(np.int64)
    return np.subtract(whole, _SHIFT_BITS, out=whole)
