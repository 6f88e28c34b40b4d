"""Quick federations of clients with different models, for several test files."""

from typing import Any

import numpy as np
from in_process import federate, settings

from fedapp.config.resolve import parse_config
from fedapp.methods.table import METHODS
from fedapp.runtime.process.context import ProcessContext
from fedapp.runtime.server.strategy import build_strategy
from strategies.rounds.federation import Federation

HETEROGENEOUS = [name for name, row in METHODS.items() if row.heterogeneous is not None]


def run(**changes: Any) -> dict[str, Any]:
    """Return the configuration of four clients with two architectures, for two rounds."""
    quick = {"num_clients": 4, "partition": "dirichlet", "participation": 1.0, "feature_dim": 16}
    return settings(**{**quick, **changes})


def outcome(config: dict[str, Any], **more: Any) -> tuple[dict[str, np.ndarray], Any]:
    """Return the end of a federation: shared arrays, server state and scores; and the strategy."""
    final, strategy, _ = federate(config, **more)
    scores = {n: np.array(v) for n, v in strategy.report.client_accuracy.items()}
    return {**final, **strategy.save(), **scores}, strategy


def strategy_of(run_config: dict[str, Any]) -> tuple[Any, ProcessContext]:
    """Return the strategy of four clients on four nodes, and the server's process context."""
    config = parse_config(run_config)
    process = ProcessContext(config)
    federation = Federation({c: c for c in range(4)}, dict.fromkeys(range(4), 1))
    return build_strategy(config, process, federation), process
