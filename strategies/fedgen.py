"""FedGen's server: averages heads, and trains a generator of features that the heads classify."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from strategies.aggregate import Arrays, UpdateRefused
from strategies.fedavg import FedAvg
from strategies.prototypes.training import (
    FeatureGenerator,
    ServerTraining,
    diversity_loss,
    ensemble_loss,
)
from strategies.rounds.named_arrays import load_module, module_arrays, strip_prefix
from strategies.rounds.records import TASK, UNEXPORTED, UPLOADS, ClientResult, Task, unpack_uploads
from strategies.rounds.report import check_finite
from strategies.rounds.transport import exchange
from strategies.threads import one_thread

EXTRA, COUNTS, LABELS = "generator", "label-counts", "label-distribution"
MISSING_COUNTS = "missing-label-counts"  # ids of clients whose label counts are missing
_STATE, _ADAM, _KNOWN = "generator.", f"{UNEXPORTED}adam.", f"{UNEXPORTED}label-counts."


class FedGen(FedAvg):
    """Mean head, and Adam on CE of the mean head's logits of generated features.

    `diversity` weights a second term, which makes different noise give different features. Clients
    do not use the generator in the first `warmup` rounds, so they do not get it.

    Labels are drawn from the label counts that the server knows. Each client sends its counts with
    its first upload, or all clients send them before the first round (`label_query`). The generator
    trains with the mean head, because the mean of linear heads' logits is the mean head's logit.
    Source: Zhu et al., ICML 2021, in the data-free variant for heterogeneous extractors.
    """

    sums_only = False  # it needs each client's label counts
    trains = True

    def __init__(
        self, *args: Any, generator: FeatureGenerator, training: ServerTraining, steps: int,
        label_query: bool, diversity: float, warmup: int, **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__(*args, **kwargs)
        self.generator, self.training, self.steps = generator, training, steps
        self.label_query, self.diversity, self.warmup = label_query, diversity, warmup
        self.optimiser = torch.optim.Adam(generator.parameters(), lr=training.lr)
        self._label_counts: dict[int, np.ndarray] = {}
        self._new_counts: dict[int, np.ndarray] = {}  # of this round, which may give no model
        self._sent: Arrays = {}

    def before_rounds(self, grid: Grid, timeout: float) -> None:
        """Query the label counts; a client without a valid answer sends them with its upload."""
        super().before_rounds(grid, timeout)
        missing = sorted(set(range(self.federation.training_clients)) - self._label_counts.keys())
        if not self.label_query or not missing:
            return
        clients_by_node = self.federation.by_node(missing)
        queries = [
            Message(
                RecordDict({TASK: ConfigRecord({"clients": clients})}),
                dst_node_id=node,
                message_type="query.labels",
            )
            for node, clients in clients_by_node.items()
        ]
        for reply in exchange(grid, queries, timeout):
            if not reply.has_error():
                with suppress(Exception):  # nodes are not trusted: see ClientStrategy
                    self._label_counts |= self._counts(
                        reply.content, clients_by_node[reply.metadata.src_node_id]
                    )

    def begin_round(self, received: Arrays, total_weight: int, cohort: int) -> None:
        """Store the generator and the label distribution, which every client of the round gets."""
        super().begin_round(received, total_weight, cohort)
        self._new_counts, self._sent = {}, {}
        if self.server_round > self.warmup:
            self._sent = {**module_arrays(self.generator), LABELS: self._distribution()}

    def extras(self, clients: Sequence[int]) -> dict[str, Arrays]:
        """Send the generator, the label distribution and the clients with missing label counts."""
        sent = dict(self._sent)
        if missing := sorted(set(clients) - self._label_counts.keys()):
            sent[MISSING_COUNTS] = np.array(missing, np.int64)
        return {EXTRA: sent} if sent else {}

    def add_reply(
        self, content: RecordDict, task: Task, results: list[ClientResult]
    ) -> list[ClientResult]:
        """Add the heads and store the label counts of the clients that send them."""
        counts = self._counts(content, [result.client for result in results])
        accepted = super().add_reply(content, task, results)
        self._new_counts |= counts
        return accepted

    def server_update(self, received: Arrays, mean: Arrays) -> Arrays:
        """Train the generator on the mean head and return the mean head.

        Raises `RoundDiverged` if the trained generator is not finite.
        """
        self._label_counts |= self._new_counts
        weight, bias = (torch.from_numpy(mean[f"head.{n}"]) for n in ("weight", "bias"))
        draw, size = self.training.draw(self.server_round), self.training.batch_size
        labels = torch.from_numpy(self._distribution())
        self.generator.train()
        with one_thread():
            for _ in range(self.steps if self._label_counts else 0):
                chosen = torch.multinomial(labels, size, True, generator=draw)
                noise = torch.rand(size, self.generator.noise, generator=draw)
                features = self.generator(noise, chosen)
                loss = ensemble_loss(features, chosen, weight, bias)
                if self.diversity:
                    loss = loss + self.diversity * diversity_loss(noise, features)
                self.optimiser.zero_grad()
                loss.backward()
                self.optimiser.step()
        trained = module_arrays(self.generator)
        check_finite(trained, self.server_round, "a generator", "lower fedgen-server-lr")
        return mean

    def state(self) -> Arrays:
        """Return the generator, Adam's moments and the label counts."""
        moments = {
            f"{_ADAM}{index}.{name}": tensor.numpy().copy()
            for index, values in self.optimiser.state_dict()["state"].items()
            for name, tensor in values.items()
        }
        counts = {f"{_KNOWN}{client}": known for client, known in self._label_counts.items()}
        return {**module_arrays(self.generator, _STATE), **moments, **counts}

    def load_state(self, state: Arrays) -> None:
        """Restore what `state` returned."""
        load_module(self.generator, state, _STATE)
        moments: dict[int, dict[str, torch.Tensor]] = {}
        for label, array in strip_prefix(state, _ADAM).items():
            index, _, name = label.partition(".")
            moments.setdefault(int(index), {})[name] = torch.from_numpy(array)
        self.optimiser.load_state_dict({**self.optimiser.state_dict(), "state": moments})
        self._label_counts = {
            int(client): counts for client, counts in strip_prefix(state, _KNOWN).items()
        }

    def _distribution(self) -> np.ndarray:
        """Return the probability of each label, [C] float32; uniform while no counts are known."""
        if not self._label_counts:
            classes = self.generator.num_classes
            return np.full(classes, 1 / classes, np.float32)
        counts = np.sum(
            [self._label_counts[client] for client in sorted(self._label_counts)], axis=0
        )
        return np.asarray(counts / counts.sum(), np.float32)

    def _counts(self, content: RecordDict, clients: Sequence[int]) -> dict[int, np.ndarray]:
        """Return the label counts in a reply by client; raises `UpdateRefused` for bad ones."""
        record = content.array_records.get(UPLOADS)
        uploads = unpack_uploads(record) if record is not None else {}
        if not uploads.keys() <= set(clients):
            raise UpdateRefused(f"it uploads for clients {sorted(uploads)}")
        return {client: self._checked(client, arrays) for client, arrays in uploads.items()}

    def _checked(self, client: int, arrays: Arrays) -> np.ndarray:
        counts = arrays.get(COUNTS, np.zeros(0))
        fits = counts.shape == (self.generator.num_classes,) and counts.dtype == np.int64
        if arrays.keys() != {COUNTS} or not fits or (counts < 0).any() or not counts.any():
            raise UpdateRefused("its label counts are not one number from 0 for each class")
        total, examples = sum(counts.tolist()), self.federation.examples[client]
        if total != examples:
            raise UpdateRefused(f"it counts {total} labels but has {examples} examples")
        return counts
