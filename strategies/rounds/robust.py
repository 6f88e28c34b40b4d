"""Robust means, by Flower's strategies, and private ones, on separate client models.

A sum does not show single clients, so these rules need each client's model. Nodes then send the
models separately, and the server keeps a cohort's models until the end of the round. Only methods
whose server step starts from a mean of models support these rules.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from flwr.app import ArrayRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg
from flwr.serverapp.strategy import (
    FedMedian,
    FedTrimmedAvg,
    Krum,
    MultiKrum,
    Strategy,
)

from strategies.aggregate import Arrays, ExactSum, UpdateRefused, difference, moved
from strategies.rounds.private import clipped, with_noise
from strategies.rounds.records import ARRAYS, from_array_record, to_array_record
from strategies.rounds.report import RoundFailed

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
        """Whether the mean is not a plain one; without masks it then needs separate models."""
        return self.name != "mean" or self.clip > 0

    @property
    def fewest(self) -> int:
        """The least number of models for the rule's protection.

        Krum needs 2f + 3 (Blanchard et al. 2017), a trimmed mean so many that it removes one at
        each end.
        """
        if self.name == "trimmed-mean":
            number = math.ceil(min(1 / self.trim, 2.0**53))
            return number if int(self.trim * number) else number + 1  # 1/49 * 49 is below 1
        return 2 * self.malicious + 3 if self.name in ("krum", "multi-krum") else 1

    def __str__(self) -> str:
        """Return the rule with the key that sets its strength, for errors."""
        if self.name == "trimmed-mean":
            return f"aggregation '{self.name}' with robust-trim {self.trim:g}"
        return f"aggregation '{self.name}' with robust-malicious {self.malicious}"

    def combine(self, server_round: int, received: Arrays, models: "SeparateModels") -> Arrays:
        """Return the combination of the models, with clients in ascending order.

        Raises `RoundFailed` if too few models are left for the rule's protection.
        """
        replies = models.updates(self.clip)
        if len(replies) < self.fewest:
            raise RoundFailed(
                f"round {server_round} has {len(replies)} usable updates, but {self} needs "
                f"{self.fewest}"
            )
        arrays, _ = RULES[self.name](self, len(replies)).aggregate_train(server_round, replies)
        if arrays is None:
            raise RoundFailed(f"{self.name} found no model among {len(replies)} updates")
        update = from_array_record(arrays)
        if self.clip > 0:
            share = len(replies) / models.cohort if self.name == "mean" else 1.0
            deviation = self.noise * self.clip / models.cohort
            update = with_noise(update, share, deviation)
        return moved(received, update)


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

    def __init__(self, received: Arrays, cohort: int) -> None:
        """Prepare for models in the shapes of `received`, of at most `cohort` clients."""
        self._check, self._received, self.cohort = ExactSum(received, 1), received, cohort
        self._models: dict[int, tuple[Arrays, int]] = {}

    def add(self, uploads: Mapping[int, Arrays], weights: Mapping[int, int]) -> None:
        """Keep a node's models, or raise `UpdateRefused` and keep none."""
        if uploads.keys() != weights.keys():
            raise UpdateRefused(f"it sent models of {sorted(uploads)}, not {sorted(weights)}")
        for arrays in uploads.values():
            self._check.check(arrays)
        for client, arrays in uploads.items():
            self._models[client] = arrays, weights[client]

    def by_client(self) -> tuple[dict[int, Arrays], dict[int, int]]:
        """Return the models and their weights by client, in ascending order."""
        ordered = sorted(self._models.items())
        models = {client: model for client, (model, _) in ordered}
        return models, {client: weight for client, (_, weight) in ordered}

    def updates(self, clip: float = 0.0) -> list[Message]:
        """Return the models minus the received one as replies for Flower's strategies.

        They are in float64, because Krum's squared distances lose the small differences of whole
        models in float32; by ascending client, and with the arrays in the server's order, because
        Krum compares flat vectors. With `clip`, updates of a larger norm are shortened to it.
        """
        replies = []
        for client, (model, weight) in sorted(self._models.items()):
            update = difference(model, self._received)
            replies.append(_reply(client, clipped(update, clip) if clip else update, weight))
        return replies


def _reply(client: int, arrays: Arrays, weight: int) -> Message:
    record: ArrayRecord = to_array_record(arrays)
    content = RecordDict({ARRAYS: record, "metrics": MetricRecord({_WEIGHT: weight})})
    return Message(content, dst_node_id=client + 1, message_type=MessageType.TRAIN)
