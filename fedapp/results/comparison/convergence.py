"""How soon a run's accuracy rises: when it reaches a target, and the mean of its last rounds.

The final accuracy of one round varies by several points where the clients' data differ. The mean
of the last rounds varies less, and the round, bytes and time up to a target tell the speed. All
functions are pure: they take the rows of metrics.jsonl.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedapp.core.errors import UserError
from fedapp.results.comparison.spread import spread_columns
from fedapp.results.outcome import fully_tested
from fedapp.results.traffic import both_ways

LAST_ROUNDS, LEAST_TESTS = 10, 2
_ROUNDING = 1e-9  # less than one of any number of test images: 60.1 % is 601 of 1000
_NUMBERS = ("round", "megabytes", "seconds")
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Reached:
    """When a run reached a target accuracy.

    Attributes:
        round: the first tested round with that accuracy or more.
        megabytes: what all clients sent and received until then, in training, 10^6 bytes; None if
            the run did not record it.
        seconds: duration of the rounds until then, tests included; None as above.
    """

    round: int
    megabytes: float | None
    seconds: float | None


def when_reached(rows: Rows, target: float) -> Reached | None:
    """Return when the accuracy reached `target`, a fraction; None: never.

    A test that lacks some clients counts only if every test of the run does.
    """
    tests = fully_tested(rows)
    first = next((r["round"] for r in tests if r["accuracy"] >= target - _ROUNDING), None)
    if first is None:
        return None
    until = [row for row in rows if row["round"] <= first]
    sent = _total(until, both_ways)
    return Reached(
        first, None if sent is None else sent / 1e6, _total(until, lambda row: row["seconds"])
    )


def accuracy_last10(rows: Rows) -> float | None:
    """Return the mean accuracy of the tests in the last ten rounds.

    None for a run of less than ten rounds, or with less than two tests in the last ten: one test
    alone is the final accuracy. Tests that lack some clients are left out if others do not.
    """
    if len(rows) < LAST_ROUNDS:
        return None
    tests = fully_tested(rows[-LAST_ROUNDS:])
    if len(tests) < LEAST_TESTS:
        return None
    return statistics.fmean(row["accuracy"] for row in tests)


def check_target(target: float) -> float:
    """Return a target accuracy; raises UserError if it is not a fraction above 0, at most 1."""
    if not 0 < target <= 1:
        raise UserError(f"target is {target} but must be a fraction above 0, at most 1")
    return target


def until_target(runs_of: Mapping[int, Sequence[Reached | None]]) -> dict[str, Any]:
    """Return which seeds reached a target, and mean and deviation over these alone.

    Args:
        runs_of: of every seed the results of its runs; a seed has reached the target if all of its
            runs have, and counts with their mean.

    Returns:
        "reached" and "not_reached" (seeds), "round", "megabytes" and "seconds", and their
        deviations ("round_std", ...); None without a seed, or if one did not record the number.
    """
    found = {seed: [run for run in runs if run] for seed, runs in sorted(runs_of.items())}
    reached = [seed for seed, runs in found.items() if len(runs) == len(runs_of[seed])]
    means = {number: [_mean(number, found[seed]) for seed in reached] for number in _NUMBERS}
    known = {
        number: [] if None in values else [value for value in values if value is not None]
        for number, values in means.items()
    }
    missed = [seed for seed in found if seed not in reached]
    return {"reached": reached, "not_reached": missed, **spread_columns(known)}


def _mean(number: str, runs: Sequence[Reached]) -> float | None:
    values = [getattr(run, number) for run in runs]
    return None if None in values else statistics.fmean(values)


def _total(rows: Rows, value: Callable[[Mapping[str, Any]], float]) -> float | None:
    """Return a sum over rounds; None if a round of another version does not have the value."""
    try:
        return sum(map(value, rows))
    except (LookupError, TypeError):
        return None
