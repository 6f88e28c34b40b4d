"""Means of client models that do not depend on the order of the replies, not by one bit.

Floating-point sums change with their order, and the order of replies changes with the number of
workers, nodes and hosts. So models are summed in 64-bit fixed point: every value is multiplied by
its weight and a power of two taken from the received global model, rounded once, and added as an
integer. Integers add exactly, so any grouping (per client, per node, per host) gives the same sum.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

Arrays = dict[str, np.ndarray]

_SUM_BITS = 62  # the sign and one spare bit stay free
_HEADROOM_BITS = 10  # a value may be 1024 times the global tensor's largest one
_BUFFER_HEADROOM_BITS = 20  # running statistics follow the activations, not the received buffer
_BUFFERS = ("running_mean", "running_var")
_SMALLEST_SCALE = 2.0**-4  # a tensor of zeros (a new bias) still gets room to grow
_CHUNK = 1 << 15  # values per step of a long sum: what is between the steps stays in the cache
_EXTRA_SCALE = 4.0  # of groups without a reference: values up to 4096


class UpdateRefused(ValueError):  # noqa: N818 - a verdict about one client, not a program error
    """A client's arrays cannot be part of the mean; the text says what is wrong with them."""


class ExactSum:
    """The weighted sum of models that are near a reference model, in int64 fixed point.

    The resolution is about 2**-38 of the largest value of each tensor for a cohort of 5,000
    examples, far below the spacing of float32.
    """

    def __init__(
        self,
        reference: Mapping[str, np.ndarray],
        total_weight: int,
        smallest: float = _SMALLEST_SCALE,
    ) -> None:
        """Prepare for weights that add up to at most `total_weight`; shapes as in `reference`.

        Values up to 1024 times the reference's largest one, or `smallest` if that is more, fit.
        """
        self._dtypes = {name: array.dtype for name, array in reference.items()}
        self._bounds = {name: _bound(name, array, smallest) for name, array in reference.items()}
        weight_bits = int(total_weight).bit_length()
        self._exponents = {
            name: _SUM_BITS - weight_bits - int(np.log2(bound))
            for name, bound in self._bounds.items()
        }
        self.sums: Arrays = {
            name: np.zeros(array.shape, np.int64) for name, array in reference.items()
        }
        self.weight = 0

    def add(self, arrays: Mapping[str, np.ndarray], weight: int) -> None:
        """Add one model with an integer weight; an unfit one raises `UpdateRefused` instead."""
        self.check(arrays)
        self.add_checked(arrays, weight)

    def add_checked(self, arrays: Mapping[str, np.ndarray], weight: int) -> None:
        """Add one model that `check` has passed."""
        for name, array in arrays.items():
            # weight * value has at most 24 + 29 significant bits: exact in float64
            _add_scaled(self.sums[name], array, float(weight) * 2.0 ** self._exponents[name])
        self.weight += int(weight)

    def check(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Raise `UpdateRefused` unless `add` would take this model."""
        self._check_shapes(arrays)
        for name, array in arrays.items():
            peak = float(_peak(array))
            if not np.isfinite(peak):
                raise UpdateRefused(f"'{name}' has non-finite values")
            if peak > self._bounds[name]:
                raise UpdateRefused(
                    f"'{name}' has a value of {peak:.3g}, more than the {self._bounds[name]:.3g} "
                    "that one round can explain"
                )

    def farthest(self, names: Iterable[str]) -> float:
        """Return the largest ||w - r||^2 over these tensors of any model w that `add` would take.

        r is the reference; the bound is generous: it takes twice the largest value for each.
        """
        return float(sum(self.sums[name].size * (2 * self._bounds[name]) ** 2 for name in names))

    def check_partial(self, sums: Mapping[str, np.ndarray], weight: int) -> None:
        """Raise `UpdateRefused` unless `merge` would take this partial sum."""
        self._check_shapes(sums)
        for name, array in sums.items():
            limit = int(weight) * int(self._bounds[name]) << max(self._exponents[name], 0)
            if array.dtype != np.int64 or int(_peak(array)) > limit:
                raise UpdateRefused(f"the partial sum of '{name}' is out of range")

    def merge(self, sums: Mapping[str, np.ndarray], weight: int) -> None:
        """Add the partial sum of another `ExactSum` with the same reference and total weight."""
        self.check_partial(sums, weight)
        self.merge_checked(sums, weight)

    def merge_checked(self, sums: Mapping[str, np.ndarray], weight: int) -> None:
        """Add a partial sum that `check_partial` has passed."""
        for name, array in sums.items():
            self.sums[name] += array
        self.weight += int(weight)

    def mean(self) -> Arrays:
        """Return the weighted mean, in the reference's data types."""
        if self.weight <= 0:
            raise ValueError("no model was added, so there is no mean")
        return {
            name: np.asarray(
                total / (self.weight * 2.0 ** self._exponents[name]), self._dtypes[name]
            )
            for name, total in self.sums.items()
        }

    def _check_shapes(self, arrays: Mapping[str, np.ndarray]) -> None:
        if missing := sorted(self.sums.keys() - arrays.keys()):
            raise UpdateRefused(f"'{missing[0]}' is missing")
        if unknown := sorted(arrays.keys() - self.sums.keys()):
            raise UpdateRefused(f"'{unknown[0]}' was not asked for")
        for name, array in arrays.items():
            if array.shape != self.sums[name].shape:
                raise UpdateRefused(
                    f"'{name}' has shape {array.shape} instead of {self.sums[name].shape}"
                )


class GroupSums:
    """The exact sums of all that a method averages: the model, and further named groups.

    The model ("arrays") is weighted as the run says; every other group counts each client once.
    """

    def __init__(
        self,
        model: Mapping[str, np.ndarray],
        groups: Mapping[str, Mapping[str, np.ndarray]],
        total_weight: int,
        cohort: int,
    ) -> None:
        """Prepare for a cohort; `groups` gives the shapes of the further groups.

        Their scale is fixed: nodes, who know only values of their own, and the server must agree.
        """
        self.model = ExactSum(model, total_weight)
        self.groups = {name: _extra_sum(arrays, cohort) for name, arrays in groups.items()}

    def add(self, model: Arrays, groups: Mapping[str, Arrays], weight: int) -> None:
        """Add one client; raises `UpdateRefused`, and adds nothing then."""
        self.check(model, groups)
        self.model.add_checked(model, weight)
        for name, arrays in groups.items():
            self.groups[name].add_checked(arrays, 1)

    def check(self, model: Arrays, groups: Mapping[str, Arrays]) -> None:
        """Raise `UpdateRefused` unless `add` would take this client."""
        self._check_names(groups)
        self.model.check(model)
        for name, arrays in groups.items():
            self.groups[name].check(arrays)

    def merge(self, model: Arrays, groups: Mapping[str, Arrays], weight: int, clients: int) -> None:
        """Add a node's partial sums over `clients` clients; raises `UpdateRefused` as `add`."""
        self._check_names(groups)
        self.model.check_partial(model, weight)
        for name, arrays in groups.items():
            self.groups[name].check_partial(arrays, clients)
        self.model.merge_checked(model, weight)
        for name, arrays in groups.items():
            self.groups[name].merge_checked(arrays, clients)

    def _check_names(self, groups: Mapping[str, Arrays]) -> None:
        if groups.keys() != self.groups.keys():
            raise UpdateRefused(f"it sent {sorted(groups)} beside the model, not "
                                f"{sorted(self.groups)}")  # fmt: skip


def weighted_mean(models: Sequence[Mapping[str, np.ndarray]], weights: Sequence[int]) -> Arrays:
    """Return sum_i weights[i] * models[i] / sum(weights), per named array, in any order of models.

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
    """Return the power of two that no value of a client's tensor may exceed."""
    peak = max(float(_peak(array)), smallest)
    headroom = _BUFFER_HEADROOM_BITS if name.endswith(_BUFFERS) else _HEADROOM_BITS
    return float(2.0 ** (np.ceil(np.log2(peak)) + headroom))


def _peak(array: np.ndarray) -> float | int:
    """Return the largest absolute value, 0 of an empty array, NaN if there is one; no copies."""
    if not array.size:
        return 0
    highest, lowest = array.max().item(), array.min().item()
    return highest if highest != highest else max(highest, -lowest)


def _add_scaled(total: np.ndarray, array: np.ndarray, scale: float) -> None:
    """Add `array` times `scale`, in float64 and rounded to integers, to `total` (int64), in place.

    The same bits as one expression over the whole array, three times as fast or more.
    """
    sums, values = total.reshape(-1), np.asarray(array).reshape(-1)
    scaled, whole = np.empty(min(_CHUNK, len(sums))), np.empty(min(_CHUNK, len(sums)), np.int64)
    for start in range(0, len(sums), _CHUNK):
        part = sums[start : start + _CHUNK]
        product, rounded = scaled[: len(part)], whole[: len(part)]
        np.multiply(values[start : start + _CHUNK], scale, out=product, dtype=np.float64)
        np.rint(product, out=product)
        np.copyto(rounded, product, casting="unsafe")
        part += rounded
