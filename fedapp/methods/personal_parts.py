"""What the strategies of `fedapp.methods.personal` take beside configuration keys."""

from typing import Any

from clients.training.arrays import floating, to_arrays
from fedapp.methods.setup import MethodSetup


def ifca(setup: MethodSetup) -> dict[str, Any]:
    """Return the initial models of IFCA's clusters, the first of them the run's own."""
    draws = range(setup.number("ifca-clusters"))
    return {"models": [to_arrays(floating(setup.new_model(draw))) for draw in draws]}
