"""THE METHOD TABLE: one row per method, and the only place that knows method names.

A method is a head, a base loss, a regulariser and a strategy. A new method that only recombines
these is one more row here. The columns are explained in `Method`; `fedapp methods` prints them.
"""

from dataclasses import dataclass, field

from clients.client import LocalClient
from clients.objective import REGULARISERS, Objective
from fedapp.errors import UserError
from strategies.fedavg import FedAvg
from strategies.fedavgm import FedAvgM
from strategies.fedexp import FedExP

Value = float

ADD = "add"  # base + weight * regulariser
BLEND = "blend"  # beta * base + (1 - beta) * regulariser

GLOBAL = "global model on the whole test set"
CLIENT_MEAN = "personal models on own test splits, mean over clients"
CLIENT_TOTAL = "personal models on own test splits, all examples together"


@dataclass(frozen=True)
class Method:
    """One row of the table."""

    title: str
    source: str  # paper and equation or algorithm
    head: str = "linear"  # a name in fedapp.models.heads.HEADS
    loss: str = "ce"  # a name in clients.objective.BASE_LOSSES
    regulariser: str | None = None  # a name in clients.objective.REGULARISERS
    combine: str = BLEND  # how loss and regulariser add up
    weight: str = "beta"  # the configuration key that weighs the regulariser
    strategy: type[FedAvg] = FedAvg
    client: type[LocalClient] = LocalClient
    scaled: bool = False  # whether the head's logits are multiplied by the key "tau"
    options: dict[str, str] = field(default_factory=dict)  # strategy's argument -> key
    client_options: dict[str, str] = field(default_factory=dict)  # client's argument -> key
    sends: str = "w"  # what travels: w (the whole model), theta (without its head), head, nothing
    also_sends: str = ""  # what travels beside it, from clients and from the server
    keeps: str = ""  # what a client keeps between rounds, in its state
    accuracy: str = GLOBAL  # what the run's accuracy is of
    defaults: dict[str, Value] = field(default_factory=dict)  # the paper's, by configuration key

    def logit_scale(self, tau: float) -> float:
        """Return what the head multiplies its logits by."""
        return tau if self.scaled else 1.0

    def objective(self, regulariser: str | None, beta: float, mu: float, tau: float) -> Objective:
        """Return the local objective, with this row's regulariser or the one asked for.

        A regulariser that is asked for on a base method is blended with it, beta * base +
        (1 - beta) * regulariser (FedDr+ section 4); a row's own is combined as its paper says.
        """
        if regulariser is None:
            return Objective(self.loss)
        if self.combine == BLEND or regulariser != self.regulariser:
            return Objective(self.loss, regulariser, beta, 1.0 - beta, tau)
        return Objective(self.loss, regulariser, 1.0, mu if self.weight == "mu" else beta, tau)


METHODS: dict[str, Method] = {
    "fedavg": Method("Federated averaging", "McMahan et al. 2017, AISTATS, algorithm 1"),
    "fedprox": Method(
        "FedAvg with a proximal term",
        "Li et al. 2020, MLSys, equation 2",
        regulariser="prox",
        combine=ADD,
        weight="mu",
        defaults={"mu": 0.001},
    ),
    "fedbabu": Method(
        "Body aggregated, head random and frozen",
        "Oh et al. 2022, ICLR, algorithm 1",
        head="frozen-random",
        sends="theta",
    ),
    "dr": Method(
        "Dot-regression on a frozen simplex-ETF head",
        "Yang et al. 2022, NeurIPS, equation 9; FedDr+ equation 3",
        head="etf",
        loss="dr",
        sends="theta",
    ),
    "feddr+": Method(
        "Dot-regression with feature distillation",
        "Kim et al. 2024, arXiv; TMLR 2025, equation 5",
        head="etf",
        loss="dr",
        regulariser="fd",
        defaults={"beta": 0.9},
        sends="theta",
    ),
    "fedfn": Method(
        "Feature normalisation before the head",
        "Kim et al. 2023, FL@FM-NeurIPS workshop, section 4",
        head="normalised-linear",
    ),
    "fedntd": Method(
        "Distillation of the not-true logits",
        "Lee et al. 2022, NeurIPS, equations 3-5",
        regulariser="ntd",
        combine=ADD,
        defaults={"beta": 1.0, "tau": 1.0},
    ),
    "spherefed": Method(
        "Squared error of cosines to a frozen orthonormal head",
        "Dong et al. 2022, ECCV; mean over classes",
        head="orthonormal",
        loss="cosine-mse",
        sends="theta",
    ),
    "spherefed-ce": Method(
        "Cross-entropy of tau times the cosines",
        "Dong et al. 2022, ECCV; FedFN appendix",
        head="orthonormal",
        scaled=True,
        defaults={"tau": 1.0},
        sends="theta",
    ),
    "fedetf": Method(
        "Balanced cross-entropy on a simplex ETF, learnable scale",
        "Li et al. 2023, ICCV, equation 6",
        head="etf-scaled",
        loss="balanced-ce",
        sends="theta",
        also_sends="scale",
    ),
    "fedgela": Method(
        "Simplex ETF scaled by each client's class frequencies",
        "Fan et al. 2023, NeurIPS, equation 5",
        head="etf",
        loss="scaled-ce",
        sends="theta",
    ),
    "fedfr": Method(
        "Regularised feature norm",
        "Kim et al. 2023, FL@FM-NeurIPS workshop, appendix",
        regulariser="norm",
        combine=ADD,
        weight="mu",
        defaults={"mu": 0.005},
    ),
    "fedexp": Method(
        "Extrapolated mean",
        "Jhunjhunwala et al. 2023, ICLR, equation 5",
        strategy=FedExP,
        options={"epsilon": "fedexp-epsilon"},
    ),
    "fedavgm": Method(
        "Server momentum",
        "Hsu et al. 2019, arXiv 1909.06335",
        strategy=FedAvgM,
        options={"beta": "fedavgm-beta"},
    ),
    "fedexp+babu": Method(
        "FedExP with the head frozen",
        "Kim et al. 2023 (FedFN), table 2",
        head="frozen-random",
        strategy=FedExP,
        options={"epsilon": "fedexp-epsilon"},
        sends="theta",
    ),
    "fedexp+fn": Method(
        "FedExP with feature normalisation",
        "Kim et al. 2023 (FedFN), table 2",
        head="normalised-linear",
        strategy=FedExP,
        options={"epsilon": "fedexp-epsilon"},
    ),
}

# What a key means when neither the user, the method nor the data set says otherwise.
FALLBACKS: dict[str, Value] = {"beta": 0.9, "mu": 0.001, "tau": 3.0}


def find_method(name: str) -> Method:
    """Return the row of a method; raises UserError with the nearest names for an unknown one."""
    if name in METHODS:
        return METHODS[name]
    raise UserError(f"method '{name}' is not in the table; choose one of {', '.join(METHODS)}")


def check_regulariser(name: str, regulariser: str) -> None:
    """Raise UserError when a regulariser is asked for that a method cannot take."""
    row = find_method(name)
    if regulariser not in REGULARISERS:
        raise UserError(
            f"regulariser '{regulariser}' is unknown; choose one of {', '.join(REGULARISERS)}"
        )
    if row.regulariser is not None and row.regulariser != regulariser:
        raise UserError(
            f"method '{name}' already has the regulariser '{row.regulariser}', so it cannot also "
            f"take '{regulariser}'; set regulariser on a base method such as fedavg or dr"
        )


def table() -> list[dict[str, str]]:
    """Return the method table as text, one dictionary per row."""
    return [
        {
            "method": name,
            "title": row.title,
            "head": row.head,
            "loss": row.loss,
            "regulariser": row.regulariser or "-",
            "combined": _combination(row),
            "strategy": row.strategy.__name__,
            "client": row.client.__name__,
            "sends": f"{row.sends}, {row.also_sends}" if row.also_sends else row.sends,
            "keeps": row.keeps or "-",
            "defaults": " ".join(f"{key}={value:g}" for key, value in row.defaults.items()) or "-",
            "source": row.source,
        }
        for name, row in METHODS.items()
    ]


def markdown_table() -> str:
    """Return the method table for docs/methods.md."""
    rows = table()
    lines = [list(rows[0]), ["---"] * len(rows[0])]
    lines += [[f"`{row['method']}`", *list(row.values())[1:]] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _combination(row: Method) -> str:
    if row.regulariser is None:
        return row.loss
    if row.combine == ADD:
        return f"{row.loss} + {row.weight} {row.regulariser}"
    return f"beta {row.loss} + (1 - beta) {row.regulariser}"
