"""The type of a row of the method table.

Methods differ along five axes: head, loss, client, server and exchange. The rows themselves are in
`fedapp.methods.table`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from clients.base import LocalClient
from clients.training.objective import LossOptions, Objective
from fedapp.core.keys import Key
from fedapp.methods.setup import MethodSetup
from fedapp.models.backbones import BackboneProperty
from fedapp.models.heads import HeadKind, find_kind
from strategies.fedavg import FedAvg
from strategies.rounds.base import ClientStrategy

ADD = "add"  # base + weight * regulariser
PERTURB = "perturb"  # gradient of the base loss at weights moved along the regulariser's gradient
BLEND = "blend"  # beta * base + (1 - beta) * regulariser
COMBINATIONS = (ADD, PERTURB, BLEND)

GLOBAL = "global model on the whole test set"
CLIENT_MEAN = "personal models on own test splits, mean over clients"
CLIENT_TOTAL = "personal models on own test splits, all examples together"
ACCURACIES = (GLOBAL, CLIENT_MEAN, CLIENT_TOTAL)

FAMILIES = {
    "global": "one model for all clients",
    "personalised": "a personalised model for each client, of one architecture",
    "heterogeneous": "clients with different architectures",
}

HETEROGENEOUS_SENDS = ("head", "mentee", "nothing")  # parts of models of their own architectures

REGULARISER_OPTIONS = {  # field of LossOptions -> key
    "share": "kd-ntd-lambda",
    "tau_squared": "ntd-tau-squared",
    "decorr_authors": "feddecorr-authors",
}

# tau of a regulariser that is added to a base method, for which no paper states one
USUAL_TEMPERATURES = {"kd": 3.0, "ntd": 3.0, "kd-ntd": 3.0, "moon": 0.5}

Parts = Callable[[MethodSetup], dict[str, Any]]  # returns arguments of a constructor


@dataclass(frozen=True)
class HeterogeneousModels:
    """Heads and second models of clients that have architectures of their own."""

    style: str = "linear"  # a name in fedapp.models.heterogeneous_heads.STYLES
    style_key: str = ""  # the configuration key that names the style; empty: `style` itself
    orthogonal: bool = False  # whether classifiers are initialised with the orthogonal rows
    second_models: tuple[str, ...] = ()  # second models, named as in clients.pair
    same_heads: bool = False  # whether all heads need one shape, because the server averages them

    def chosen_style(self, values: Mapping[str, Any]) -> str:
        """Return the style of heads that a configuration (its values by key) asks for."""
        return str(values[self.style_key]) if self.style_key else self.style


@dataclass(frozen=True)
class FineTuning:
    """How clients fine-tune the final model, and what "auto" means for the finetune-* keys."""

    part: str = ""  # trained part, as in clients.training.parts; empty: all but a frozen head
    protocol: str = "feddr+"  # a name in fedapp.methods.fine_tuned.PROTOCOLS
    factor: float = 0.1  # fine-tuning rate / learning rate of round 1, in FedFN's protocol
    turns: bool = False  # whether training may alternate between head rows and bottleneck
    evaluated: bool = False  # whether every client fine-tunes and the run reports their accuracy


@dataclass(frozen=True)
class HeadSpec:
    """The head of the model and the keys that configure it."""

    name: str = "linear"  # in fedapp.models.heads.HEADS
    options: dict[str, str] = field(default_factory=dict)  # field of HeadKind -> key
    scale_key: str = ""  # key of the logit scale, or of its initial value if the scale is learned

    def kind(self, values: Mapping[str, Any]) -> HeadKind:
        """Return the head that a configuration (its values by key) asks for."""
        options = {name: values[key] for name, key in self.options.items()}
        return replace(find_kind(self.name), **options)

    def logit_scale(self, values: Mapping[str, Any]) -> float:
        """Return the factor of the logits, or its initial value if the factor is learned."""
        return float(values[self.scale_key]) if self.scale_key else 1.0


@dataclass(frozen=True)
class LossSpec:
    """The local objective: a base loss and a regulariser."""

    base: str = "ce"  # a name in clients.training.objective.BASE_LOSSES
    regulariser: str | None = None  # a name in clients.training.objective.REGULARISERS
    combine: str = BLEND  # how the two are combined: ADD, PERTURB or BLEND
    weight: str = "beta"  # key of the regulariser's weight
    options: dict[str, str] = field(default_factory=dict)  # argument of the base loss -> key


def no_parts(setup: MethodSetup) -> dict[str, Any]:
    """Return no arguments: most methods need nothing from the app but configuration keys."""
    return {}


@dataclass(frozen=True)
class ClientSpec:
    """The client class and its arguments."""

    kind: type[LocalClient] = LocalClient
    options: dict[str, str] = field(default_factory=dict)  # argument -> key
    parts: Parts = no_parts  # further arguments, made from the app's models, sizes and seeds


@dataclass(frozen=True)
class ServerSpec:
    """The strategy class and its arguments."""

    kind: type[ClientStrategy] = FedAvg
    options: dict[str, str] = field(default_factory=dict)  # argument -> key
    parts: Parts = no_parts  # further arguments, made from the app's models, sizes and seeds


@dataclass(frozen=True)
class Exchange:
    """What clients and server send in every round, and what a client keeps."""

    # a word of SENDS or HETEROGENEOUS_SENDS; empty: all but a frozen head
    sends: str = ""
    also_sends: str = ""  # what clients and server send in addition
    keeps: str = ""  # what a client keeps in its state between rounds
    keeps_if: tuple[str, float | str] = ("", "")  # key and value that `keeps` depends on


@dataclass(frozen=True)
class Method:
    """One row of the table."""

    title: str
    source: str  # paper and equation or algorithm
    head: HeadSpec = HeadSpec()
    loss: LossSpec = LossSpec()
    client: ClientSpec = ClientSpec()
    server: ServerSpec = ServerSpec()
    exchange: Exchange = Exchange()
    heterogeneous: HeterogeneousModels | None = (
        None  # set where clients have architectures of their own
    )
    fine_tuning: FineTuning = FineTuning()
    accuracy: str = GLOBAL  # what the run's accuracy measures
    needs: BackboneProperty = ""  # what the backbones that it can train have; empty: any
    keys: dict[str, Key] = field(default_factory=dict)  # run-config keys of this method
    defaults: dict[str, Any] = field(default_factory=dict)  # the paper's values, by key
    fixed: dict[str, Any] = field(
        default_factory=dict
    )  # values that the user cannot change, by key
    settings_of: str = ""  # method whose published settings apply; empty: its own
    scheduled: str = ""  # what depends on num-rounds, besides the learning rate

    def __post_init__(self) -> None:
        """Set `exchange.sends` if the row leaves it empty: a frozen head is never sent."""
        if not self.exchange.sends:
            sends = "body" if find_kind(self.head.name).frozen else "model"
            object.__setattr__(self, "exchange", replace(self.exchange, sends=sends))

    @property
    def family(self) -> str:
        """Whose models it trains: a word of `FAMILIES`."""
        if self.heterogeneous is not None:
            return "heterogeneous"
        return "global" if self.accuracy == GLOBAL else "personalised"

    @property
    def has_global_model(self) -> bool:
        """Whether a run gives one model for all clients, which they may fine-tune afterwards."""
        return self.accuracy == GLOBAL or self.fine_tuned

    @property
    def saves_server_state(self) -> bool:
        """Whether clients' tests need the server's state, which a run saves for later ones."""
        return self.heterogeneous is not None or self.server.kind.keeps_models

    @property
    def fine_tuned(self) -> bool:
        """Whether every client fine-tunes the final model and the run reports their accuracy."""
        return self.fine_tuning.evaluated

    @property
    def averages_models(self) -> bool:
        """Whether its server averages the clients' models, even with rounded updates."""
        kind = self.server.kind
        sends = self.exchange.sends != "nothing"
        return sends and issubclass(kind, FedAvg) and kind.rounds_updates

    def named_keys(self) -> list[str]:
        """Return the keys of its head, loss, client and server, and of the style of other heads."""
        parts = (self.head, self.loss, self.client, self.server)
        keys = [key for part in parts for key in part.options.values()]
        style = self.heterogeneous.style_key if self.heterogeneous is not None else ""
        return keys + [key for key in (self.head.scale_key, style) if key]

    def kept(self, regulariser: str | None, values: Mapping[str, Any]) -> str:
        """Return what clients keep between rounds with this regulariser; empty: nothing.

        `values` holds the values of the configuration by key.
        """
        key, value = self.exchange.keeps_if
        keeps = self.exchange.keeps
        own = [keeps] if keeps and (not key or values.get(key) == value) else []
        needs_previous = Objective(self.loss.base, regulariser).needs_previous
        return ", ".join([*own, "previous model"] if needs_previous else own)

    def objective(self, values: Mapping[str, Any]) -> Objective:
        """Return the local objective of a resolved configuration, given by its values by key.

        A regulariser that the user adds to a base method is blended with the base loss: beta * base
        + (1 - beta) * regulariser (FedDr+ table 2). A row's own regulariser is combined as in its
        paper. If tau scales the logits, the regulariser has its usual temperature.
        """
        options = LossOptions(
            **{name: values[key] for name, key in REGULARISER_OPTIONS.items()},
            arguments=tuple(
                (self.loss.base, name, values[key]) for name, key in self.loss.options.items()
            ),
        )
        name, beta, tau = values["regulariser"], float(values["beta"]), float(values["tau"])
        if name == "none":
            return Objective(self.loss.base, options=options)
        tau = USUAL_TEMPERATURES.get(name, tau) if self.head.scale_key == "tau" else tau
        if self.loss.combine == BLEND or name != self.loss.regulariser:
            return Objective(self.loss.base, name, beta, 1.0 - beta, tau, options)
        weight = 0.0 if self.loss.combine == PERTURB else float(values[self.loss.weight])
        return Objective(self.loss.base, name, 1.0, weight, tau, options)
