"""The privacy budget of a run with `dp-clip` and `dp-noise`: which epsilon its models have spent.

Client-level differential privacy: neighbouring federations differ in all data of one client, which
another client's replace. Cohorts have a fixed size n and are drawn without replacement. The sum of
updates clipped to norm C then changes by at most 2 C, and its noise has a standard deviation of
`dp-noise` C. An attacker may be a client, which knows whether it takes part, so the cohort counts
as drawn from the other clients. With secure aggregation the server is an attacker too, and knows
who takes part, as do the nodes of a round: then every round counts as if all clients took part.
The accountant is that of dp-accounting (Renyi differential privacy; Wang, Balle and
Kasiviswanathan 2019, AISTATS, for sampling; Mironov 2017).
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from fedapp.config.auto import computes_from_clients
from fedapp.config.measures import measures_of_models
from fedapp.config.run_config import RunConfig
from fedapp.core.errors import UserError
from fedapp.core.rng import cohort_size

_ORDERS = (
    1.5, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 64, 96, 128, 256,
)  # fmt: skip
_DECIMALS = 3  # of a noise multiplier that is found, so that all hosts find the same
_LEAST_NOISE, _MOST_NOISE = 0.01, 1e6


@dataclass(frozen=True)
class Budget:
    """The noise of each round, the sampling, and the limit of epsilon at a fixed delta."""

    noise: float  # standard deviation of the noise of the sum, over the clipping norm
    clients: int
    cohort: int
    delta: float
    limit: float = 0.0  # of epsilon; 0: none

    @classmethod
    def of(cls, config: RunConfig) -> "Budget | None":
        """Return the budget of a configuration, or None if it has none to count."""
        if not float(config.dp_noise) or config.aggregation != "mean":
            return None
        return cls(
            float(config.dp_noise), config.training_clients, _counted_cohort(config),
            config.dp_delta, config.dp_epsilon,
        )  # fmt: skip

    def terms(self) -> dict[str, float]:
        """Return what every round of a run must share, so that rounds can be counted."""
        return {"noise": self.noise, "clients": self.clients, "cohort": self.cohort}

    def epsilon(self, rounds: int) -> float:
        """Return what the models of so many rounds have spent together."""
        if not rounds:
            return 0.0
        each = _divergences(self.noise, self.clients, self.cohort)
        return _epsilon([rounds * divergence for divergence in each], self.delta)

    def affordable(self, planned: int) -> int:
        """Return how many of the planned rounds stay within the limit."""
        if not self.limit or self.epsilon(planned) <= self.limit:
            return planned
        return bisect_right(range(1, planned), self.limit, key=self.epsilon)


def spent(rounds: Mapping[float, int], delta: float) -> float:
    """Return the epsilon of rounds without sampling; their numbers are by noise multiplier."""
    if not any(rounds.values()):
        return 0.0
    each = [
        [count * divergence for divergence in _divergences(noise, 1, 1)]
        for noise, count in rounds.items()
    ]
    return _epsilon([sum(column) for column in zip(*each, strict=True)], delta)


def check_privacy(config: RunConfig) -> None:
    """Raise UserError if a budget cannot be counted, or if the keys contradict each other."""
    noise = float(config.dp_noise)
    if config.dp_epsilon and not noise:
        raise UserError("dp-epsilon limits a run with noise, but dp-noise is 0: set it to 'auto'")
    if config.dp_epsilon and config.aggregation != "mean":
        raise UserError(
            f"dp-epsilon counts the noise of the mean, but aggregation is '{config.aggregation}': "
            "set it to 'mean', or leave dp-epsilon out"
        )
    if noise and config.dp_delta * config.training_clients >= 1:
        raise UserError(
            f"dp-delta is {config.dp_delta:g} but must be below 1/(num-clients - new-clients) = "
            f"{1 / config.training_clients:g}: otherwise a method that publishes one client's data "
            "fits"
        )
    if noise and (words := measures_of_models(config.analyses)):
        raise UserError(
            f"measure '{words[0]}' shows local models, which dp-noise is to hide: remove it from "
            "analyses"
        )


def check_statistics_hidden(config: RunConfig) -> None:
    """Raise UserError if a private run would publish statistics of its training images."""
    by_statistics = config.normalisation == "dataset" and computes_from_clients(config)
    if float(config.dp_noise) and by_statistics:
        raise UserError(
            "run-config key 'normalisation' is 'dataset': mean and deviation of all clients' "
            "training images, which dp-noise does not hide; set it to 'symmetric'"
        )


def privacy_settings(config: RunConfig) -> dict[str, Any]:
    """Return the noise that "auto" means: what spends `dp-epsilon` in all rounds; else none."""
    if config.dp_noise != "auto" or not config.dp_epsilon:
        return {"dp_noise": 0.0}
    return {
        "dp_noise": _noise_for(
            config.dp_epsilon, config.dp_delta, config.num_rounds, config.training_clients,
            _counted_cohort(config),
        )
    }  # fmt: skip


def _counted_cohort(config: RunConfig) -> int:
    """Return the size of a round's cohort, or the number of clients if cohorts are known."""
    if config.secure_aggregation != "off":
        return config.training_clients
    return cohort_size(config.training_clients, config.participation)


def _epsilon(divergences: Sequence[float], delta: float) -> float:
    """Return epsilon of Renyi divergences at all orders."""
    from dp_accounting.rdp import compute_epsilon  # a second, which few runs need

    return float(compute_epsilon(_ORDERS, divergences, delta)[0])


@cache
def _noise_for(epsilon: float, delta: float, rounds: int, clients: int, cohort: int) -> float:
    """Return the smallest noise, with three decimals, that stays within epsilon."""
    step = 10**-_DECIMALS

    def enough(steps: int) -> bool:
        return Budget(steps * step, clients, cohort, delta).epsilon(rounds) <= epsilon

    low, high, most = (round(noise / step) for noise in (_LEAST_NOISE, 1.0, _MOST_NOISE))
    while high < most and not enough(high):  # usual noise is near 1, and each try takes long
        low, high = high, min(4 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return round(high * step, _DECIMALS)


@cache
def _divergences(noise: float, clients: int, cohort: int) -> tuple[float, ...]:
    """Return the Renyi divergence of one round at each order.

    The bound for a sampled cohort is loose for large ones, where that of the release itself is
    smaller. The latter holds too: a mean over cohorts is no further apart than the furthest pair.
    """
    import dp_accounting

    release = dp_accounting.GaussianDpEvent(noise / 2)  # the sum changes by twice the norm
    bounds = [_renyi(release)]
    others = clients - 1
    if cohort < others:
        sampled = dp_accounting.SampledWithoutReplacementDpEvent(others, cohort, release)
        bounds.append(_renyi(sampled))
    return tuple(min(pair) for pair in zip(*bounds, strict=True))


def _renyi(event: Any) -> list[float]:
    """Return the Renyi divergence of an event of dp-accounting at each order."""
    from dp_accounting import NeighboringRelation
    from dp_accounting.rdp import RdpAccountant

    relation = NeighboringRelation.REPLACE_ONE
    accountant = RdpAccountant(orders=_ORDERS, neighboring_relation=relation)
    return [float(each) for each in accountant.compose(event).rdp]
