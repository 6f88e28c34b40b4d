"""What a process keeps between messages: its data, one model, and the method's objective.

A process builds it once per configuration and reuses it for every message; the process may be a
worker of a simulation, a SuperNode's app or the server. Client weights are loaded into the model in
place, and the data stay on the device.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch

import fedapp
from clients.attacks import LABELS
from clients.base import LocalClient
from clients.state.memory import Memory
from clients.state.store import ClientState
from clients.training.local_training import LocalSettings
from clients.training.model_slot import ModelSlot
from fedapp.config.model_checks import check_single_image_batches
from fedapp.config.resolve import parse_config
from fedapp.config.run_config import RunConfig
from fedapp.core.errors import UserError
from fedapp.core.hardware import choose_device, keep_memory, set_float32_precision
from fedapp.core.paths import state_folder
from fedapp.methods.setup import MethodSetup
from fedapp.methods.table import find_method, kept_by_clients
from fedapp.models.backbones import needs_two, normalises_by_batch
from fedapp.models.initial import digest, find_initial, load_initial
from fedapp.models.model import Model, shared_tensors
from fedapp.runtime.process.client_roles import attackers
from fedapp.runtime.process.federated_data import BatchSettings, FederatedData
from fedapp.runtime.process.fine_tuning import tuning_of
from fedapp.runtime.process.global_model import build_global_model
from fedapp.runtime.process.heterogeneous_models import HeterogeneousSlots
from fedapp.runtime.process.run_data import draw_partition, feature_skew, load_run_dataset
from strategies.rounds.quantised import Codec

_opened: dict[tuple[Any, ...], "ProcessContext"] = {}  # at most one
_threads_before: list[int] = []  # PyTorch's number, if the open context has one of its own


class ProcessContext:
    """The data, the model and the clients of one process."""

    def __init__(self, config: RunConfig, data_dir: str = "", own: int | None = None) -> None:
        """Load the data and build the model.

        `data_dir` overrides the configuration's. With partition 'own', `own` is the client whose
        data it contains.
        """
        keep_memory()
        self.config = config
        self.method = find_method(config.method)
        self.device = choose_device(config.device)
        set_float32_precision(config.precision)
        folder = data_dir or config.data_dir
        self.initial = find_initial(config.initial_model, folder, config.download)
        dataset = load_run_dataset(config, data_dir)
        partition = draw_partition(config, dataset, own, data_dir)
        one_model = self.method.heterogeneous is None
        if one_model:
            check_single_image_batches(config, dataset.image_size)
        self.data = FederatedData(
            dataset, partition, batch_settings(config, one_model, dataset.image_size), self.device
        )
        self.settings = LocalSettings(
            int(config.local_epochs), float(config.momentum), float(config.weight_decay),
            config.clip_norm, config.precision, config.cuda_graphs,
        )  # fmt: skip
        self._values = config.flat()
        self.keeps = kept_by_clients(self._values)
        self._options = {
            name: self._values[key] for name, key in self.method.client.options.items()
        }
        self.objective = self.method.objective(self._values)
        self.model: Any = self.slot.model
        if not any(parameter.requires_grad for parameter in self.model.parameters()):
            raise UserError(
                f"all layers of model '{config.model}' are frozen, and method '{config.method}' "
                "trains no head: nothing would be trained; choose a method with a trained head"
            )

    @cached_property
    def files(self) -> dict[str, str]:
        """The user's files that the run uses: "extension" and "split", each "none" or with hash."""
        return {
            "extension": self.config.extension(),
            "split": self.data.partition.source or "none",
        }

    @cached_property
    def initial_hash(self) -> str:
        """A hash of the initial model's file, as of its first use; "none" without a file."""
        return digest(self.initial)

    @cached_property
    def attackers(self) -> frozenset[int]:
        """The malicious clients."""
        return attackers(self.config)

    @property
    def files_text(self) -> str:
        """The user's files in one text, empty without any."""
        return ", ".join(f"{kind} {file}" for kind, file in self.files.items() if file != "none")

    @property
    def title(self) -> str:
        """The name of the model, or of the group of models."""
        return self.config.model_group or self.config.model

    def metadata(self) -> dict[str, str]:
        """Return what a file of the model says about it, besides its tensors."""
        return {
            "method": self.config.method,
            "model": self.title,
            "dataset": self.config.dataset,
            "fedapp": fedapp.__version__,
            **self.data.dataset.image_format.as_metadata(),
        }

    def new_model(self, draw: int = 0) -> Model:
        """Build the method's model with the initial weights of a draw; clients share draw 0."""
        images = self.data.dataset.image_format
        model = build_global_model(self.config, images, self.device, draw)
        return load_initial(model, self.initial)

    @cached_property
    def slot(self) -> ModelSlot:
        """The first client's models, and all clients' unless they have different architectures."""
        if self.heterogeneous is not None:
            return self.heterogeneous.slot(0)
        model = self.new_model()
        shared = shared_tensors(model, self.method.exchange.sends)
        tuning = tuning_of(self.config, self.method, self.objective, self.settings)
        return ModelSlot(model, shared, self.settings, self.new_model, tuning)

    @cached_property
    def codec(self) -> Codec:
        """The form in which clients send their models."""
        trained = tuple(name for name, t in self.slot.shared.items() if t.requires_grad)
        return Codec(self.config.upload_bits, trained)

    def slot_of(self, client: int) -> ModelSlot:
        """Return the models of one client's architecture."""
        return self.slot if self.heterogeneous is None else self.heterogeneous.slot(client)

    @cached_property
    def heterogeneous(self) -> HeterogeneousSlots | None:
        """The models of clients with different architectures; None if the method has one model."""
        if self.method.heterogeneous is None:
            return None
        return HeterogeneousSlots(
            self.config, self.method, self.data.dataset.image_format, self.device, self.settings
        )

    @cached_property
    def setup(self) -> MethodSetup:
        """What the method's row uses to build strategy and clients."""
        classes = self.data.dataset.num_classes
        values, own = self._values, self.heterogeneous
        return MethodSetup(values, classes, self.model, self.new_model, own)

    def client(
        self,
        client: int,
        memory: Memory | None = None,
        extras: Mapping[str, dict[str, np.ndarray]] | None = None,
        server_round: int = 0,
    ) -> LocalClient:
        """Return the NumPyClient of one client for a round, with its state and received extras."""
        data = self.data.client(client, server_round)
        return self.method.client.kind(
            self.slot_of(client), client, data,
            replace(self.objective, class_counts=data.class_counts),
            memory, extras, **self._options, **self.method.client.parts(self.setup),
        )  # fmt: skip

    def memory(
        self,
        client: int,
        state_key: str,
        server_round: int,
        accepted: int | None = None,
        state_dir: str = "",
    ) -> Memory | None:
        """Return a client's state as of the start of `server_round`; None if it keeps nothing.

        `state_key` names the run's states; `accepted` is the client's last round that the server
        accepted, 0 for none, None if that is not known.
        """
        if not self.keeps or not state_key:
            return None
        config, dataset = self.config, self.data.dataset
        root = state_folder(state_dir or config.state_dir)
        header = {
            "method": config.method,
            "model": config.model
            if self.heterogeneous is None
            else self.heterogeneous.name(client),
            "classes": f"{dataset.num_classes} ({dataset.classes_hash()})",
            "seed": str(config.seed),
        }
        state = ClientState(root, state_key, client, header)
        return Memory(state, server_round, accepted, config.state_missing)

    def state_bytes(self) -> int:
        """Return the bytes on disk of all clients' states once every client has trained twice.

        There are two versions of each then. A process takes one more while it writes.
        """
        if self.heterogeneous is not None:
            return 2 * self.heterogeneous.bytes_of_all()
        return 2 * self.config.num_clients * self.client(0).state_bytes()

    def head_hash(self) -> str:
        """Return a hash of the head's rows that every process rebuilds from the seed.

        These are the rows of a frozen head, or the orthogonal rows that initialise the heads of
        clients with their own models. Empty if there are none. With so few features that rows are
        found by descent, processors differ in the last bits, which an initial value may.
        """
        if self.heterogeneous is not None:
            rows = self.heterogeneous.rows if self.heterogeneous.kind.orthogonal else None
            if rows is not None and rows.shape[1] < rows.shape[0] - 1:
                rows = None
        else:
            head = self.model.head
            rows = head.weight.detach().cpu().numpy() if head.frozen else None
        return "" if rows is None else hashlib.sha256(rows.tobytes()).hexdigest()[:16]


def batch_settings(config: RunConfig, one_model: bool, image_size: int) -> BatchSettings:
    """Return the batch settings of a configuration, for one model or for one per client."""
    own_statistics = one_model and normalises_by_batch(config.model, config.bn)
    needs_pairs = one_model and needs_two(config.model, image_size, config.bn)
    return BatchSettings(
        seed=config.seed,
        size=int(config.batch_size),
        augmentation=config.augmentation,
        drop_last=bool(config.drop_last),
        trains_on_one_image=one_model,
        shuffle=config.local_shuffle,
        decode_threads=config.decode_threads,
        test_size=int(config.test_batch_size) if own_statistics else 0,
        dropped_every=config.stochastic_every,
        dropped_from=config.stochastic_from,
        skew=feature_skew(config),
        mislabelled=attackers(config) if config.attack == LABELS else frozenset(),
        batchnorm_model=config.model if needs_pairs else "",
    )


def open_process(run_config: Mapping[str, Any], node_config: Mapping[str, Any]) -> ProcessContext:
    """Return this process's context for a run configuration, building it at the first call."""
    config = config_of(run_config)
    data_dir = str(node_config.get("data-dir", ""))
    own = int(node_config["partition-id"]) if config.partition == "own" else None
    key = tuple(sorted(run_config.items())), data_dir, own
    if key not in _opened:
        close_process()  # frees the memory of the previous configuration
        _opened[key] = _open(config, data_dir, own)
    return _opened[key]


def config_of(run_config: Mapping[str, Any]) -> RunConfig:
    """Return a run configuration, parsed once.

    Whoever decides what a node may do asks it: the mapping that the server sends may say otherwise,
    because `extension-keys` and the method's own values replace some of its keys.
    """
    return _parsed(tuple(sorted(run_config.items())))


@lru_cache(maxsize=1)
def _parsed(run_config: tuple[tuple[str, Any], ...]) -> RunConfig:
    return parse_config(dict(run_config))


def close_process() -> None:
    """Drop this process's context with its data, models and number of threads."""
    _opened.clear()
    _parsed.cache_clear()
    if _threads_before:
        torch.set_num_threads(_threads_before.pop())


def _open(config: RunConfig, data_dir: str, own: int | None) -> ProcessContext:
    if config.threads:
        _threads_before.append(torch.get_num_threads())
        torch.set_num_threads(config.threads)
    return ProcessContext(config, data_dir, own)
