"""The difference of two methods over common seeds, and its significance."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class PairedDifference:
    """The mean difference of two groups over their common seeds, as fractions."""

    difference: float
    standard_error: float
    p_value: float | None  # two-sided paired t-test; None if all differences are equal, but not 0
    seeds: tuple[int, ...]


def paired_difference(
    one: Mapping[int, float], other: Mapping[int, float]
) -> PairedDifference | None:
    """Return `one` minus `other`, by seed; None with fewer than two common seeds."""
    seeds = tuple(sorted(one.keys() & other.keys()))
    if len(seeds) < 2:
        return None
    differences = [one[seed] - other[seed] for seed in seeds]
    error = statistics.stdev(differences) / math.sqrt(len(seeds))
    mean = statistics.fmean(differences)
    if error < 1e-12:  # only rounding error: the test would divide by 0
        return PairedDifference(mean, 0.0, 1.0 if abs(mean) < 1e-12 else None, seeds)
    from scipy.stats import ttest_rel

    test = ttest_rel([one[seed] for seed in seeds], [other[seed] for seed in seeds])
    return PairedDifference(mean, error, float(test.pvalue), seeds)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Adjust p values for their number (Holm 1979).

    None, of a constant difference, stays None: it counts as the smallest p, so that the others are
    adjusted for the number of the others.
    """
    known = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    highest = 0.0
    for rank, (p, index) in enumerate(known):
        highest = max(highest, min(1.0, p * (len(known) - rank)))
        adjusted[index] = highest
    return adjusted
