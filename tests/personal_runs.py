"""Quick federations of clients that have models of their own, for several test files."""

from typing import Any

import numpy as np
from in_process import federate, settings

from fedapp.config.resolve import parse_config
from fedapp.methods.table import METHODS
from fedapp.runtime.process import ProcessContext
from fedapp.runtime.strategy import build_strategy
from strategies.rounds.federation import Federation

PERSONAL = [name for name, row in METHODS.items() if row.personal is not None]


def run(**changes: Any) -> dict[str, Any]:
    """A federation of four clients with two architectures, for two rounds."""
    quick = {"num_clients": 4, "partition": "dirichlet", "participation": 1.0, "feature_dim": 16}
    return settings(**{**quick, **changes})


def outcome(config: dict[str, Any], **more: Any) -> tuple[dict[str, np.ndarray], Any]:
    """Everything a federation ends with: shared arrays, server state, the clients' scores."""
    final, strategy, _ = federate(config, **more)
    scores = {n: np.array(v) for n, v in strategy.report.client_accuracy.items()}
    return {**final, **strategy.save(), **scores}, strategy


def strategy_of(run_config: dict[str, Any]) -> tuple[Any, ProcessContext]:
    """The strategy of four clients on nodes of their own, and the server's node."""
    config = parse_config(run_config)
    node = ProcessContext(config)
    federation = Federation({c: c for c in range(4)}, dict.fromkeys(range(4), 1))
    return build_strategy(config, node, federation), node
