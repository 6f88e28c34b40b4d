"""FedOpt: FedAdagrad, FedYogi and FedAdam, an adaptive optimiser on the server.

The mean update of a round is the server's gradient (Reddi et al. 2021, ICLR, algorithm 2).
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from strategies.aggregate import Arrays
from strategies.stateful import StatefulFedAvg

# v, the squared mean update and beta_2 -> the next v, for arrays of one shape
SecondMoment = Callable[[np.ndarray, np.ndarray, float], np.ndarray]


def adagrad(moment: np.ndarray, square: np.ndarray, beta2: float) -> np.ndarray:
    """Return v + D^2, which only grows; beta_2 has no effect."""
    return moment + square


def yogi(moment: np.ndarray, square: np.ndarray, beta2: float) -> np.ndarray:
    """Return v - (1 - beta_2) D^2 sign(v - D^2)."""
    return moment - (1 - beta2) * square * np.sign(moment - square)


def adam(moment: np.ndarray, square: np.ndarray, beta2: float) -> np.ndarray:
    """Return beta_2 v + (1 - beta_2) D^2."""
    return beta2 * moment + (1 - beta2) * square


class FedOpt(StatefulFedAvg):
    """m <- beta_1 m + (1 - beta_1) D; v by a rule; w <- w_g + eta m / (sqrt(v) + tau).

    D = mean - w_g. m starts at 0 and v at tau^2, without a correction of this start. This holds for
    trained parameters; buffers are averaged. The moments are kept in float64.
    """

    def __init__(
        self,
        *args: Any,
        second_moment: SecondMoment,
        server_lr: float,
        tau: float,
        beta1: float = 0.0,
        beta2: float = 0.0,
        **kwargs: Any,
    ) -> None:
        """Prepare a strategy.

        Args:
            args, kwargs: as `FedAvg`.
            second_moment: the rule for v.
            server_lr: eta, the server's learning rate.
            tau: the degree of adaptivity; the smaller, the more adaptive.
            beta1: the decay of m.
            beta2: the decay of v, for rules that have one.
        """
        super().__init__(*args, **kwargs)
        self.second_moment, self.server_lr, self.tau = second_moment, server_lr, tau
        self.beta1, self.beta2 = beta1, beta2

    def server_update(self, received: Arrays, mean: Arrays) -> Arrays:
        """Update both moments and step from the received model."""
        steps = {}
        for name in self.trained:
            start = received[name].astype(np.float64)
            update = mean[name] - start
            first = self.kept.get(f"m.{name}", np.zeros_like(start))
            second = self.kept.get(f"v.{name}", np.full_like(start, self.tau**2))
            first = self.beta1 * first + (1 - self.beta1) * update
            second = self.second_moment(second, update**2, self.beta2)
            steps[name] = self.server_lr * first / (np.sqrt(second) + self.tau)
            self.kept |= {f"m.{name}": first, f"v.{name}": second}
        return self.stepped(received, steps, mean)
