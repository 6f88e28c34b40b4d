"""Robust means and differential privacy, by Flower's strategies, on separate client models.

A sum does not show single clients, so these rules need each client's model. Nodes then send the
models separately, and the server keeps a cohort's models until the end of the round. Only methods
whose server step starts from a mean of models support these rules.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from flwr.app import ArrayRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedMedian,
    FedTrimmedAvg,
    Krum,
    MultiKrum,
    Strategy,
)
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg

from strategies.aggregate import Arrays, ExactSum, UpdateRefused
from strategies.rounds.federation import RoundFailed
from strategies.rounds.records import ARRAYS, from_array_record, to_array_record

_WEIGHT = "num-examples"


@dataclass(frozen=True)
class Rule:
    """How the server combines separate models into one."""

    name: str = "mean"  # one of RULES
    malicious: int = 0  # number of malicious clients that krum and multi-krum assume
    trim: float = 0.2  # share that trimmed-mean removes at each end
    clip: float = 0.0  # differential privacy: largest norm of an update; 0: none
    noise: float = 0.0  # differential privacy: noise multiplier

    @property
    def needed(self) -> bool:
        """Whether the rule needs separate models."""
        return self.name != "mean" or self.clip > 0

    @property
    def fewest(self) -> int:
        """The least number of models: krum needs 2f + 3 (Blanchard et al. 2017)."""
        return 2 * self.malicious + 3 if self.name in ("krum", "multi-krum") else 1

    def combine(self, server_round: int, received: Arrays, models: "SeparateModels") -> Arrays:
        """Return the combination of the models, with clients in ascending order.

        The noise of differential privacy comes from the operating system, not from the run's seed,
        so that nobody who knows the seed can subtract it. Raises `RoundFailed` if too few models
        are left for the rule's protection.
        """
        replies = models.messages()
        if len(replies) < self.fewest:
            raise RoundFailed(
                f"round {server_round} has {len(replies)} usable updates, but aggregation "
                f"'{self.name}' with robust-malicious {self.malicious} needs {self.fewest}"
            )
        strategy = RULES[self.name](self, len(replies))
        if self.clip > 0:
            strategy = DifferentialPrivacyServerSideFixedClipping(
                strategy, self.noise, self.clip, num_sampled_clients=len(replies)
            )
            strategy.current_arrays = to_array_record(received)
            _fresh_noise()
        arrays, _ = strategy.aggregate_train(server_round, replies)
        if arrays is None:
            raise RoundFailed(f"{self.name} found no model among {len(replies)} updates")
        combined = from_array_record(arrays)
        return {name: combined[name].astype(array.dtype) for name, array in received.items()}


RULES: dict[str, Callable[[Rule, int], Strategy]] = {
    "mean": lambda rule, clients: FlowerFedAvg(),
    "median": lambda rule, clients: FedMedian(),
    "trimmed-mean": lambda rule, clients: FedTrimmedAvg(beta=rule.trim),
    "krum": lambda rule, clients: Krum(num_malicious_nodes=rule.malicious),
    "multi-krum": lambda rule, clients: MultiKrum(
        num_malicious_nodes=rule.malicious,
        num_nodes_to_select=max(1, clients - rule.malicious),
    ),
}


class SeparateModels:
    """The models of one round, each with its weight."""

    def __init__(self, received: Arrays) -> None:
        """Prepare for models in the shapes of `received`."""
        self._check, self._names = ExactSum(received, 1), tuple(received)
        self._models: dict[int, tuple[Arrays, int]] = {}

    def add(self, uploads: Mapping[int, Arrays], weights: Mapping[int, int]) -> None:
        """Keep a node's models, or raise `UpdateRefused` and keep none."""
        if uploads.keys() != weights.keys():
            raise UpdateRefused(f"it sent models of {sorted(uploads)}, not {sorted(weights)}")
        for arrays in uploads.values():
            self._check.check(arrays)
        for client, arrays in uploads.items():
            self._models[client] = arrays, weights[client]

    def messages(self) -> list[Message]:
        """Return the models as replies for Flower's strategies, by ascending client.

        Flower compares arrays by position, so they have the order of `received`: that of a model
        that was read from a checkpoint differs from the clients'.
        """
        ordered = {
            client: ({name: arrays[name] for name in self._names}, weight)
            for client, (arrays, weight) in sorted(self._models.items())
        }
        return [_reply(client, *model) for client, model in ordered.items()]


def _reply(client: int, arrays: Arrays, weight: int) -> Message:
    record: ArrayRecord = to_array_record(arrays)
    content = RecordDict({ARRAYS: record, "metrics": MetricRecord({_WEIGHT: weight})})
    return Message(content, dst_node_id=client + 1, message_type=MessageType.TRAIN)


def _fresh_noise() -> None:
    """Seed NumPy's global generator, the source of Flower's noise, from the operating system.

    The generator belongs to the whole process; a run uses it only for this noise.
    """
    np.random.seed(None)
