"""The models of a federation in which clients have different architectures.

A process keeps one model per architecture of its clients and loads each client's weights into it.
Initial weights depend on the run's seed and the architecture only: clients of one architecture
start with equal weights, which makes their prototypes comparable from round 1. With
`init-per-client` the weights also depend on the client, except those that clients share by
construction.
"""

import zlib
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from clients.pair import Pair
from clients.training.local_training import LocalSettings
from clients.training.model_slot import ModelSlot
from fedapp.config.run_config import RunConfig
from fedapp.core.errors import UserError
from fedapp.core.rng import Stream, seeded, torch_seed
from fedapp.data.image_format import ImageFormat
from fedapp.methods.row import Method
from fedapp.methods.table import find_method
from fedapp.models.architectures import build_heterogeneous_extractor
from fedapp.models.groups import find_group
from fedapp.models.heterogeneous_heads import HeterogeneousHead, build_heterogeneous_head
from fedapp.models.model import Model
from fedapp.models.orthogonal import orthogonal_initialisation
from fedapp.results.final_model import read_arrays, read_metadata
from fedapp.runtime.process.global_model import build_global_model, load_arrays_of

_REMEDY = "`fedapp personalise RUN --export FOLDER` writes them"


class HeterogeneousSlots:
    """The model slots of a process, one per pair of architecture and head."""

    def __init__(
        self,
        config: RunConfig,
        method: Method,
        images: ImageFormat,
        device: torch.device,
        settings: LocalSettings,
    ) -> None:
        """Keep the settings; a model is built when the first client needs it."""
        if method.heterogeneous is None:
            raise ValueError("the method has one model for all clients")
        self.config, self.method, self.kind = config, method, method.heterogeneous
        self.images, self.device, self.settings = images, device, settings
        self.group = find_group(config.model_group)
        self._slots: dict[tuple[str, int], ModelSlot] = {}
        self._rows: dict[tuple[int, int], Tensor] = {}  # with few features they take seconds

    def slot(self, client: int) -> ModelSlot:
        """Return the models of one client's architecture and head."""
        key = self.group.architecture_of(client), self.group.hidden_of(client)
        if key not in self._slots:
            model = self.build(*key)
            own = self._build_for if self.config.init_per_client else None
            self._slots[key] = ModelSlot(
                model, self.shared(model), self.settings, lambda: self.build(*key), build_for=own
            )
        return self._slots[key]

    def build(self, architecture: str, hidden: int, draw: int = 0) -> nn.Module:
        """Build a model with the initial weights of a draw; all clients share draw 0."""
        return self._model(architecture, hidden, draw).to(self.device)

    def _build_for(self, client: int) -> nn.Module:
        """Build a client's model with initial weights for this client only."""
        group = self.group
        return self.build(group.architecture_of(client), group.hidden_of(client), 1 + client)

    def to_load(self, client: int) -> Model:
        """Build a client's own model, without second models, for weights that are loaded next."""
        group = self.group
        key = group.architecture_of(client), group.hidden_of(client)
        return own_model(self._model(*key, 0, orthogonal=False).to(self.device))

    def header(self, hidden: int) -> nn.Module:
        """Build a head that a server trains, initialised from a separate seed."""
        seed = torch_seed(self.config.seed, Stream.SERVER, 0, hidden)
        return self._head(hidden, seed, self.config.head_final_relu)

    def shared(self, model: nn.Module) -> dict[str, Tensor]:
        """Return the parameters that are sent: those of the part that the method's row names."""
        return {
            n: p
            for n, p in model.named_parameters()
            if n.startswith(f"{self.method.exchange.sends}.")
        }

    def name(self, client: int) -> str:
        """Return the kind of a client's model; stored models of another kind are refused."""
        hidden = self.group.hidden_of(client)
        return f"{self.group.architecture_of(client)}-{hidden}-{self.config.feature_dim}"

    @cached_property
    def rows(self) -> np.ndarray:
        """The orthogonal rows W [C, K] that initialise heads without a hidden layer."""
        return self.orthogonal(int(self.config.feature_dim), self._head_seed(0)).numpy()

    def orthogonal(self, width: int, seed: int) -> Tensor:
        """Return orthogonal rows [C, width], drawn from a seed."""
        config, key = self.config, (width, seed)
        if key not in self._rows:
            self._rows[key] = orthogonal_initialisation(
                len(self.images.classes), width, seed,
                simplex=config.oi_simplex, objective=config.oi_objective,
            )  # fmt: skip
        return self._rows[key].clone()

    def bytes_of_all(self) -> int:
        """Return the total bytes of all clients' models without allocating them."""
        sizes: dict[tuple[str, int], int] = {}
        total = 0
        for client in range(self.config.num_clients):
            key = self.group.architecture_of(client), self.group.hidden_of(client)
            if key not in sizes:
                with torch.device("meta"):
                    state = self._model(*key, 0, orthogonal=False).state_dict()
                sizes[key] = sum(t.numel() * t.element_size() for t in state.values())
            total += sizes[key]
        return total

    def _model(
        self, architecture: str, hidden: int, draw: int, orthogonal: bool | None = None
    ) -> Model | Pair:
        """Build what a client keeps: its own model, and second models, which always use draw 0."""
        width = int(self.config.feature_dim)
        head = self._head(hidden, self._head_seed(hidden, draw), self.config.head_final_relu)
        if self.kind.orthogonal if orthogonal is None else orthogonal:
            with torch.no_grad():
                head.weight.copy_(self.orthogonal(hidden or width, self._head_seed(hidden)))
        own = self._assembled(architecture, head, draw)
        if not self.kind.second_models:
            return own
        mentee_head = self._head(0, self._seed_of("mentee head"))
        mentee = self._assembled(self.group.mentee, mentee_head, 0, "mentee")
        # not a seed of a head, whose hidden layer may have the same sizes
        with seeded(self._seed_of("map")):
            map_ = nn.Linear(width, width, bias=False) if "map" in self.kind.second_models else None
        return Pair(own, mentee, map_)

    def _assembled(
        self, architecture: str, head: HeterogeneousHead, draw: int, role: str = ""
    ) -> Model:
        """Build an extractor for a head; its weights depend on role, architecture and draw."""
        config, images = self.config, self.images
        with seeded(self._seed_of(f"{role}{architecture}", draw)):
            extractor = build_heterogeneous_extractor(
                architecture, images.channels, images.side, int(config.feature_dim),
                config.feature_map,
            )  # fmt: skip
        return Model(extractor, head).to(memory_format=torch.channels_last)

    def _head(self, hidden: int, seed: int, final_relu: bool = False) -> HeterogeneousHead:
        config = self.config
        style = self.kind.chosen_style(config.flat())
        return build_heterogeneous_head(
            style, int(config.feature_dim), len(self.images.classes), seed, hidden=hidden,
            scale=config.feddor_scale_init, final_relu=final_relu,
        )  # fmt: skip

    def _seed_of(self, part: str, draw: int = 0) -> int:
        return torch_seed(self.config.seed, Stream.ARCHITECTURE, draw, zlib.crc32(part.encode()))

    def _head_seed(self, hidden: int, draw: int = 0) -> int:
        return torch_seed(self.config.seed, Stream.HEAD, draw, hidden)


def load_personal_model(
    config: RunConfig, file: Path, device: torch.device
) -> tuple[Model, ImageFormat]:
    """Return a client's model from the file that `fedapp personalise` has written, and its images.

    Raises UserError if the file is damaged, or not of a client of this configuration's method.
    """
    if not file.is_file():
        raise UserError(f"{file} is no file; {_REMEDY}")
    metadata, method = read_metadata(file), find_method(config.method)
    client, trained = metadata.get("client", ""), metadata.get("method")
    if not client.isdecimal() or trained != config.method:
        raise UserError(f"{file} is not a client's model of method '{config.method}'; {_REMEDY}")
    images = ImageFormat.of_metadata(metadata, file)
    if method.heterogeneous is None:
        model = build_global_model(config, images, device)
    else:
        settings = LocalSettings(epochs=0)
        model = HeterogeneousSlots(config, method, images, device, settings).to_load(int(client))
    load_arrays_of(model, read_arrays(file), file)
    return model, images


def own_model(model: nn.Module) -> Model:
    """Return the model that a client predicts with: itself, or the personal one of a pair."""
    own: Model = model.personal if isinstance(model, Pair) else model  # type: ignore[assignment]
    return own
