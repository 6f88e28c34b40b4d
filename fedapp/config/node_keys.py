"""The keys of a SuperNode's node-config that fedapp reads."""

from collections.abc import Mapping
from typing import Any

from fedapp.core.errors import UserError, nearest

NODE_KEYS = (
    "partition-id",
    "num-partitions",
    "hosts",
    "data-dir",
    "state-dir",
    "worker",
    "secure-key",
    "secure-peers",
    "secure-least",
    "privacy-epsilon",
    "privacy-delta",
    "privacy-ledger",
)
_LIKENESS = 0.8


def check_node_config(node_config: Mapping[str, Any]) -> None:
    """Raise UserError for a key that is nearly one of fedapp's: it would protect nothing.

    Other keys are the operator's own, for example a label of the host.
    """
    for key in node_config:
        if key not in NODE_KEYS and (near := nearest(key, NODE_KEYS, 1, _LIKENESS)):
            raise UserError(f"node-config key '{key}' does not exist; did you mean '{near[0]}'?")
