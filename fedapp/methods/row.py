"""What a row of the method table says: the five axes along which the methods differ.

The rows themselves are in `fedapp.methods.table`, the only place that knows method names.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from clients.base import LocalClient
from clients.training.objective import LossOptions, Objective
from fedapp.core.keys import Key
from fedapp.methods.setup import MethodSetup
from fedapp.models.heads import HeadKind, find_kind
from strategies.fedavg import FedAvg
from strategies.rounds.base import ClientStrategy

Value = float

ADD = "add"  # base + weight * regulariser
PERTURB = "perturb"  # the gradient of the base loss, at weights moved along the regulariser's
BLEND = "blend"  # beta * base + (1 - beta) * regulariser

GLOBAL = "global model on the whole test set"
CLIENT_MEAN = "personal models on own test splits, mean over clients"
CLIENT_TOTAL = "personal models on own test splits, all examples together"

FAMILIES = {
    "global": "one model for all clients",
    "personalised": "a personalised model for each client, of one architecture",
    "heterogeneous": "clients with different architectures",
}

LOSS_OPTIONS = {  # field of LossOptions -> key
    "share": "kd-ntd-lambda",
    "tau_squared": "ntd-tau-squared",
    "reduction": "spherefed-reduction",
    "missing": "fedetf-missing",
    "temperature": "fedgela-temperature",
}

Parts = Callable[[MethodSetup], dict[str, Any]]  # -> arguments of a constructor


@dataclass(frozen=True)
class PersonalModels:
    """What the models of clients with architectures of their own are made of."""

    style: str = "linear"  # a name in fedapp.models.personal_heads.STYLES
    style_key: str = ""  # or the configuration key that names it
    orthogonal: bool = False  # classifiers start at the orthogonal rows
    beside: tuple[str, ...] = ()  # second models: words of clients.pair
    same_heads: bool = False  # heads are averaged, so all must have one shape


@dataclass(frozen=True)
class FineTuning:
    """How clients fine-tune the final model, and what "auto" means there."""

    part: str = ""  # of the model, a word of clients.training.parts; empty: all but a frozen head
    protocol: str = "feddr+"  # a name in fedapp.config.fine_tuning.PROTOCOLS
    factor: float = 0.1  # fine-tuning rate by first learning rate, in FedFN's protocol
    turns: bool = False  # whether its fixed rows and the bottleneck may be trained in turn
    evaluated: bool = False  # whether every client fine-tunes, and the run's accuracy is theirs


@dataclass(frozen=True)
class HeadSpec:
    """The head of the model, and the keys that change it."""

    name: str = "linear"  # in fedapp.models.heads.HEADS
    options: dict[str, str] = field(default_factory=dict)  # field of HeadKind -> key
    scale_key: str = ""  # of the factor of the logits, or of its first value where it is learned

    def kind(self, values: Mapping[str, Any]) -> HeadKind:
        """Return the head, as a configuration (its values by key) wants it."""
        options = {name: values[key] for name, key in self.options.items()}
        return replace(find_kind(self.name), **options)

    def logit_scale(self, values: Mapping[str, Any]) -> float:
        """Return the factor of the logits, or its first value where it is learned."""
        return float(values[self.scale_key]) if self.scale_key else 1.0


@dataclass(frozen=True)
class LossSpec:
    """The local objective: a base loss and a regulariser."""

    base: str = "ce"  # a name in clients.training.objective.BASE_LOSSES
    regulariser: str | None = None  # a name in clients.training.objective.REGULARISERS
    combine: str = BLEND  # how the two add up
    weight: str = "beta"  # the key that weighs the regulariser


def no_parts(setup: MethodSetup) -> dict[str, Any]:
    """Return nothing: most methods need nothing of the app beyond their configuration keys."""
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
    """What travels in every round, and what stays with a client."""

    sends: str = ""  # model, body (without its head), head, mentee, nothing; empty: by the head
    also_sends: str = ""  # what travels beside it, from clients and from the server
    keeps: str = ""  # what a client keeps between rounds, in its state
    keeps_with: tuple[str, Value | str] = ("", "")  # only where this key has this value


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
    personal: PersonalModels | None = None  # set where clients have architectures of their own
    fine_tuning: FineTuning = FineTuning()
    accuracy: str = GLOBAL  # what the run's accuracy is of
    models: tuple[str, ...] = ()  # the backbones it can train, its own choice first; empty: all
    keys: dict[str, Key] = field(default_factory=dict)  # its own run-config keys
    defaults: dict[str, Value] = field(default_factory=dict)  # the paper's, by configuration key
    fixed: dict[str, Any] = field(default_factory=dict)  # keys that are so whatever is asked for
    settings_of: str = ""  # the method whose published settings it takes; empty: its own
    scheduled: str = ""  # what of it, beside the learning rate, counts from num-rounds

    def __post_init__(self) -> None:
        """Derive what travels where the row does not name it: a frozen head never does."""
        if not self.exchange.sends:
            sends = "body" if find_kind(self.head.name).frozen else "model"
            object.__setattr__(self, "exchange", replace(self.exchange, sends=sends))

    @property
    def family(self) -> str:
        """Whose models it trains: a word of `FAMILIES`."""
        if self.personal is not None:
            return "heterogeneous"
        return "global" if self.accuracy == GLOBAL else "personalised"

    @property
    def fine_tuned(self) -> bool:
        """Whether every client fine-tunes the final model, and the accuracy is theirs."""
        return self.fine_tuning.evaluated

    def kept(self, regulariser: str | None, values: Mapping[str, Any]) -> str:
        """Return what clients keep between rounds with this regulariser; empty: nothing.

        `values` are those of the configuration by key.
        """
        key, value = self.exchange.keeps_with
        keeps = self.exchange.keeps
        own = [keeps] if keeps and (not key or values.get(key) == value) else []
        looks_back = Objective(self.loss.base, regulariser).needs_previous
        return ", ".join([*own, "previous model"] if looks_back else own)

    def objective(self, values: Mapping[str, Any]) -> Objective:
        """Return the local objective of a resolved configuration, given by its values by key.

        A regulariser that is asked for on a base method is blended with it, beta * base +
        (1 - beta) * regulariser (FedDr+ table 2); a row's own is combined as its paper says.
        Where tau scales the logits, a regulariser has its own temperature.
        """
        options = LossOptions(**{name: values[key] for name, key in LOSS_OPTIONS.items()})
        name, beta, tau = values["regulariser"], float(values["beta"]), float(values["tau"])
        if name == "none":
            return Objective(self.loss.base, options=options)
        tau = TAU.get(name, tau) if self.head.scale_key == "tau" else tau
        if self.loss.combine == BLEND or name != self.loss.regulariser:
            return Objective(self.loss.base, name, beta, 1.0 - beta, tau, options)
        weight = 0.0 if self.loss.combine == PERTURB else float(values[self.loss.weight])
        return Objective(self.loss.base, name, 1.0, weight, tau, options)


TAU = {"kd": 3.0, "ntd": 3.0, "kd-ntd": 3.0, "moon": 0.5}  # as in the methods of their own
