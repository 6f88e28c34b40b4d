"""What a process needs to serve clients: their data, one model, and the method's objective.

It is built once per process and configuration and reused by every message, whether the process is a
worker of a simulation, a SuperNode's app or the server. Client models are loaded into the one model
in place, and the data stays on the device.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch

from clients.base import LocalClient
from clients.state.listing import expected_bytes
from clients.state.memory import Memory
from clients.state.store import ClientState
from clients.training.local_training import Batches, LocalSettings
from clients.training.workplace import ClientData, Workplace
from fedapp.config.model_checks import check_one_pixel
from fedapp.config.resolve import parse_config
from fedapp.config.run_config import RunConfig
from fedapp.core.errors import UserError
from fedapp.core.hardware import choose_device, keep_memory, set_float32_precision
from fedapp.core.paths import state_folder
from fedapp.core.rng import Stream, torch_rng, torch_seed
from fedapp.data.batches.in_memory import ClientBatches, batch_bounds, full_batch_bounds
from fedapp.data.batches.serving import plain_batches, training_batches
from fedapp.data.batches.streamed import StreamedBatches
from fedapp.data.partition.stochastic import dropped_class
from fedapp.data.partition.table import Partition
from fedapp.methods.table import find_method, kept_by_clients
from fedapp.models.backbones import BACKBONES, needs_two
from fedapp.models.initial import find_initial, load_initial
from fedapp.models.model import Model, build_model, shared_tensors
from fedapp.runtime.fine_tuning import tuning_of
from fedapp.runtime.personal_models import PersonalPlaces
from fedapp.runtime.run_data import data_hash, draw_partition, prepared
from strategies.rounds.records import Task

EVALUATION_BATCH = 500
_opened: dict[tuple[Any, ...], "Node"] = {}  # this process's node, by what it was opened for


class Node:
    """The data, the model and the clients of one process."""

    def __init__(self, config: RunConfig, data_dir: str = "", own: int | None = None) -> None:
        """Load the data and build the model.

        `data_dir` overrides the configuration's; `own` is the client whose own data lies there.
        """
        keep_memory()
        self.config = config
        self.method = find_method(config.method)
        self.device = choose_device(config.device)
        set_float32_precision(config.precision)
        place = data_dir or config.data_dir
        self.initial = find_initial(config.initial_model, place, config.download)
        self.dataset = prepared(config, data_dir)
        self.partition = draw_partition(config, self.dataset, own)
        self.settings = LocalSettings(
            int(config.local_epochs), float(config.momentum), float(config.weight_decay),
            config.clip_norm, config.precision,
        )  # fmt: skip
        side, one_model = self.dataset.image_size, self.method.personal is None
        self._needs_two = one_model and needs_two(config.model, side, config.bn)
        if one_model:
            check_one_pixel(config, side)
        self._values = config.flat()
        self.keeps = kept_by_clients(self._values)
        self._options = {
            name: self._values[key] for name, key in self.method.client_options.items()
        }
        self.objective = self.method.objective(self._values)
        self.model: Any = self.workplace.model
        self._batches: dict[int, ClientBatches | StreamedBatches] = {}
        self._class_counts = torch.from_numpy(self.class_counts()[0]).to(self.device)
        self._everyone_tests = self.partition.everyone_tests()

    @property
    def title(self) -> str:
        """The name of the model, or of the group of models."""
        return self.config.model_group or self.config.model

    def new_model(self) -> Model:
        """Build the method's model with its initial weights."""
        config, data = self.config, self.dataset
        model = build_model(
            config.model, self.method.head_kind(self._values), data.channels, data.image_size,
            data.num_classes, config.seed, config.bn, self.device,
            self.method.logit_scale(self._values), config.bottleneck, config.bottleneck_layers,
        )  # fmt: skip
        return load_initial(model, self.initial)

    @cached_property
    def workplace(self) -> Workplace:
        """The models of the first client, which are every client's unless they have their own."""
        if self.personal is not None:
            return self.personal.place(0)
        model = self.new_model()
        shared = shared_tensors(model, self.method.sends)
        tuning = tuning_of(self.config, self.method, self.objective, self.settings)
        return Workplace(model, shared, self.settings, self.new_model, tuning)

    def place(self, client: int) -> Workplace:
        """Return the models of one client's architecture."""
        return self.workplace if self.personal is None else self.personal.place(client)

    @cached_property
    def personal(self) -> PersonalPlaces | None:
        """The models of clients with architectures of their own, if the method has such."""
        if self.method.personal is None:
            return None
        return PersonalPlaces(self.config, self.method, self.dataset, self.device, self.settings)

    def client(
        self,
        client: int,
        memory: Memory | None = None,
        inbox: Mapping[str, dict[str, np.ndarray]] | None = None,
    ) -> LocalClient:
        """Return the NumPyClient of one client."""
        counts = self._class_counts[client]
        data = ClientData(
            training=lambda server_round: self._training_data(client, server_round, Stream.BATCHES),
            tuning=lambda server_round: self._training_data(client, server_round, Stream.TUNING),
            examples=lambda: self.training_examples(client),
            test=lambda: self.test_batches(self._tested(client)),
            num_examples=len(self.partition.train[client]),
            class_counts=counts,
            seed=lambda r: torch_seed(self.config.seed, Stream.LOCAL, r, client),
        )
        return self.method.client(
            self.place(client), client, data, replace(self.objective, class_counts=counts),
            memory, inbox, **self._options, **self.method.client_parts(self),
        )  # fmt: skip

    def memory(
        self, client: int, task: Task, server_round: int, state_dir: str = ""
    ) -> Memory | None:
        """Return what a client keeps, as `server_round` sees it; None if it keeps nothing."""
        if not self.keeps or not task.state_key:
            return None
        config = self.config
        root = state_folder(state_dir or config.state_dir)
        header = {
            "method": config.method,
            "model": config.model if self.personal is None else self.personal.name(client),
            "classes": f"{self.dataset.num_classes} ({self.dataset.classes_hash()})",
            "seed": str(config.seed),
        }
        state = ClientState(root, task.state_key, client, header)
        return Memory(state, server_round, client in task.known, config.state_missing)

    def state_bytes(self) -> int:
        """Return how much disk the states of all clients take together, at most."""
        if self.personal is not None:
            return expected_bytes(1, self.personal.bytes_of_all())
        return expected_bytes(self.config.num_clients, self.client(0).state_bytes())

    def _training_data(self, client: int, server_round: int, stream: Stream) -> Any:
        """Return a function that gives one epoch of a client's batches after the other."""
        batches = self._client_batches(client)
        generator = torch_rng(self.config.seed, stream, server_round, client)
        members = self._present(client, server_round)
        if self._needs_two and len(batches if members is None else members) == 1:
            raise UserError(
                f"client {client} has one training image in round {server_round}, but model "
                f"'{self.config.model}' has BatchNorm, which needs 2 of these images or more"
            )
        return lambda: batches.epoch(generator, members)

    def dropped_class(self, client: int, server_round: int) -> int | None:
        """Return the class that a stochastic client lacks in a round, if any."""
        labels, config = self.dataset.train_labels[self.partition.train[client]], self.config
        return dropped_class(
            labels, config.seed, client, server_round, config.stochastic_every,
            config.stochastic_from,
        )  # fmt: skip

    def _present(self, client: int, server_round: int) -> torch.Tensor | None:
        """Return the client's samples that it has in this round, by position; None: all."""
        dropped = self.dropped_class(client, server_round)
        if dropped is None:
            return None
        labels = self.dataset.train_labels[self.partition.train[client]]
        return torch.from_numpy(np.flatnonzero(labels != dropped))

    def _client_batches(self, client: int) -> ClientBatches | StreamedBatches:
        if client not in self._batches:
            config, members = self.config, self.partition.train[client]
            # One image trains what it can, which BatchNorm in networks of the clients' own cannot.
            bounds = full_batch_bounds if config.drop_last else batch_bounds
            self._batches[client] = training_batches(
                self.dataset, members, int(config.batch_size), config.augmentation, self.device,
                config.decode_threads, partial(bounds, alone=self.personal is None),
                config.local_shuffle,
            )  # fmt: skip
        return self._batches[client]

    def training_examples(self, client: int) -> Batches:
        """Give a client's training examples in order, without augmentation."""
        return plain_batches(
            self.dataset, "train", self.partition.train[client], EVALUATION_BATCH, self.device,
            threads=self.config.decode_threads,
        )  # fmt: skip

    def _tested(self, client: int) -> np.ndarray:
        """Return a client's test images; a single one is none where BatchNorm needs two."""
        members = self.partition.test[client]
        alone = self._needs_two and self.config.bn == "batch" and len(members) == 1
        return members[:0] if alone else members

    def tested_labels(self) -> np.ndarray:
        """Return the labels of the whole global test set."""
        labels = self.dataset.test_labels
        return labels if self._everyone_tests is None else labels[self._everyone_tests]

    def test_batches(self, members: np.ndarray | None = None) -> Batches:
        """Give the whole global test set, or the listed part of it, in batches on the device."""
        members = self._everyone_tests if members is None else members
        one_model = self.personal is None
        own_statistics = (
            one_model and BACKBONES[self.config.model].has_batch_norm and self.config.bn == "batch"
        )
        return plain_batches(
            self.dataset, "test", members,
            int(self.config.test_batch_size) if own_statistics else EVALUATION_BATCH,
            self.device,
            torch_seed(0, Stream.EVALUATION) if own_statistics else None,
            self.config.decode_threads,
        )  # fmt: skip

    def class_counts(self) -> tuple[np.ndarray, tuple[str, ...], np.ndarray]:
        """Return training images [clients, classes], the classes' names, and test images."""
        data, parts = self.dataset, self.partition
        train = parts.class_counts(np.asarray(data.train_labels), data.num_classes)
        test = Partition(parts.test, []).class_counts(
            np.asarray(data.test_labels), data.num_classes
        )
        return train, tuple(data.classes), test

    @cached_property
    def data_hash(self) -> str:
        """What server and nodes compare of their data: `run_data.data_hash`, computed once."""
        return data_hash(self.dataset, self.partition)

    def head_hash(self) -> str:
        """Return a hash of the rows that every process rebuilds from the seed: a frozen head's.

        Or those at which the heads of clients with models of their own start; empty without any.
        """
        if self.personal is not None:
            rows = self.personal.rows if self.personal.kind.orthogonal else None
        else:
            head = self.model.head
            rows = head.weight.detach().cpu().numpy() if head.frozen else None
        return "" if rows is None else hashlib.sha256(rows.tobytes()).hexdigest()[:16]


def open_node(run_config: Mapping[str, Any], node_config: Mapping[str, Any]) -> Node:
    """Return this process's node for a run configuration, building it at the first call."""
    data_dir = str(node_config.get("data-dir", ""))
    own = int(node_config["partition-id"]) if run_config.get("partition") == "own" else None
    asked = tuple(sorted(run_config.items())), data_dir, own
    if asked not in _opened:
        close_node()  # its memory is needed
        _opened[asked] = _open(*asked)
    return _opened[asked]


def close_node() -> None:
    """Forget this process's node, with its data and models."""
    _opened.clear()


def _open(run_config: tuple[tuple[str, Any], ...], data_dir: str, own: int | None) -> Node:
    config = parse_config(dict(run_config))
    if config.threads:
        torch.set_num_threads(config.threads)
    return Node(config, data_dir, own)
