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
class Stage:
    """What "auto" means in the second stage, in which clients fine-tune the final model."""

    part: str = ""  # of the model, a word of clients.training.parts; empty: all but a frozen head
    protocol: str = "feddr+"  # a name in fedapp.config.fine_tuning.PROTOCOLS
    factor: float = 0.1  # fine-tuning rate by first learning rate, in FedFN's protocol
    turns: bool = False  # whether its fixed rows and the bottleneck may be trained in turn


def no_parts(setup: MethodSetup) -> dict[str, Any]:
    """Return nothing: what most methods need of the app beyond their configuration keys."""
    return {}


@dataclass(frozen=True)
class Method:
    """One row of the table."""

    title: str
    source: str  # paper and equation or algorithm
    head: str = "linear"  # a name in fedapp.models.heads.HEADS
    loss: str = "ce"  # a name in clients.training.objective.BASE_LOSSES
    regulariser: str | None = None  # a name in clients.training.objective.REGULARISERS
    combine: str = BLEND  # how loss and regulariser add up
    weight: str = "beta"  # the configuration key that weighs the regulariser
    strategy: type[ClientStrategy] = FedAvg
    client: type[LocalClient] = LocalClient
    scale_key: str = ""  # of what the head's logits are multiplied by, or of where that starts
    head_options: dict[str, str] = field(default_factory=dict)  # field of HeadKind -> key
    keys: dict[str, Key] = field(default_factory=dict)  # its own run-config keys
    options: dict[str, str] = field(default_factory=dict)  # strategy's argument -> key
    client_options: dict[str, str] = field(default_factory=dict)  # client's argument -> key
    sends: str = ""  # what travels: model, body (without its head), head, mentee, nothing
    also_sends: str = ""  # what travels beside it, from clients and from the server
    keeps: str = ""  # what a client keeps between rounds, in its state
    keeps_with: tuple[str, Value | str] = ("", "")  # only where this key has this value
    accuracy: str = GLOBAL  # what the run's accuracy is of
    personal: PersonalModels | None = None  # set where clients have architectures of their own
    strategy_parts: Parts = no_parts  # what the strategy needs beside `options`
    client_parts: Parts = no_parts  # what the client needs beside `client_options`
    models: tuple[str, ...] = ()  # the backbones it can train, its own choice first; empty: all
    stage: Stage = Stage()  # how clients fine-tune
    fine_tuned: bool = False  # whether they do so, and the accuracy is theirs
    settings_of: str = ""  # the method whose published settings it takes; empty: its own
    scheduled: str = ""  # what of it, beside the learning rate, counts from num-rounds
    defaults: dict[str, Value] = field(default_factory=dict)  # the paper's, by configuration key
    fixed: dict[str, Any] = field(default_factory=dict)  # keys that are so whatever is asked for

    def __post_init__(self) -> None:
        """Derive what travels where the row does not say it: a frozen head never does."""
        if not self.sends:
            object.__setattr__(self, "sends", "body" if find_kind(self.head).frozen else "model")

    def head_kind(self, values: Mapping[str, Any]) -> HeadKind:
        """Return the head, as a configuration (its values by key) wants it."""
        options = {name: values[key] for name, key in self.head_options.items()}
        return replace(find_kind(self.head), **options)

    def logit_scale(self, values: Mapping[str, Any]) -> float:
        """Return what the head multiplies its logits by, or where its learned scale starts."""
        return float(values[self.scale_key]) if self.scale_key else 1.0

    def kept(self, regulariser: str | None, values: Mapping[str, Any]) -> str:
        """Return what clients keep between rounds with this regulariser; empty: nothing.

        `values` are those of the configuration by key.
        """
        key, value = self.keeps_with
        own = [self.keeps] if self.keeps and (not key or values.get(key) == value) else []
        looks_back = Objective(self.loss, regulariser).needs_previous
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
            return Objective(self.loss, options=options)
        tau = TAU.get(name, tau) if self.scale_key == "tau" else tau
        if self.combine == BLEND or name != self.regulariser:
            return Objective(self.loss, name, beta, 1.0 - beta, tau, options)
        weight = 0.0 if self.combine == PERTURB else float(values[self.weight])
        return Objective(self.loss, name, 1.0, weight, tau, options)


TAU = {"kd": 3.0, "ntd": 3.0, "kd-ntd": 3.0, "moon": 0.5}  # as in the methods of their own
