"""A method's learning rate, weights and temperatures in the paper of a published number.

Each is read from the row's column, otherwise from its table's setting, otherwise from the paper's
list of hyperparameters. The same method may have other values in another paper.
"""

import re
from collections.abc import Mapping
from typing import Any

from fedapp.config.run_config import RunConfig
from fedapp.experiments.papers.protocol import CannotRunError, Keys, Published, Reason, method_of
from fedapp.methods.row import USUAL_TEMPERATURES
from fedapp.methods.table import METHODS

# Methods without a stated learning rate -> the method whose rate is used.
SAME_RATE = {
    "dr": "feddr+", "ce-frozen": "fedbabu", "local-dr": "feddr+",
    **dict.fromkeys(
        ("local", "local-etf", "fedper", "fedrep", "per-fedavg", "ditto"), "fedavg"
    ),
}  # fmt: skip
SWEPT = ("beta", "mu", "tau", "lambda", "epsilon", "rho")
LONG_NAMES = {"s": "samples"}
_FEDEXP: tuple[Keys, str] = (
    {"fedexp-step": "feddr+", "fedexp-evaluate": "last"},
    "step length of at most 1 and the last model, as in a public code base with FedDr+'s methods; "
    "that it made this table is inferred from numbers mostly near FedAvg's",
)
_PER_FEDAVG: tuple[Keys, str] = (
    {"per-fedavg-constant": True},
    "constant outer rate, as in the FedBABU authors' code, which adapts to test images before the "
    "test; here clients adapt to training images",
)
# Differences of the released code of a paper's tables, by paper and method: keys and a description.
RELEASED: dict[tuple[str, str], tuple[Keys, str]] = {
    ("feddr+", "fedexp"): _FEDEXP,
    **{("fedfn", name): _FEDEXP for name in ("fedexp", "fedexp+babu", "fedexp+fn")},
    ("feddr+", "ditto"): (
        {},
        "the FedBABU authors' code tests clients outside the last cohort with the global model, "
        "which the published accuracies fit; here each client's own model is tested",
    ),
    ("feddr+", "fedgela"): (
        {},
        "tested on mixed batches also where others are on own images, because its clients' "
        "predictions have their own class frequencies",
    ),
    **{(name, "per-fedavg"): _PER_FEDAVG for name in ("feddr+", "fedfn")},
    ("feddor", "fedproto"): (
        {"proto-collect": "during", "fedproto-weighting": "uniform"},
        "prototypes are means of the features during training, and all clients count equally, as "
        "in FedORGP's public code",
    ),
    ("feddor", "fedkd"): (
        {"fedkd-truncation": "htfllib", "fedkd-energy-end": 0.9515},
        "all matrices are truncated, convolutions kernel by kernel, and the energy rises from 0.95 "
        "by 0.03 in 2,000 rounds, so to 0.9515 in 100, as in FedORGP's public code",
    ),
    ("feddor", "fedgen"): (
        {},
        "clients use the generator; in FedORGP's public code none gets it, and FedGen is a mean of "
        "heads",
    ),
    ("fedntd", "fednova"): (
        {"fednova-correction": "own"},
        "correction by the client's own last mean gradient, as in the authors' code; plain FedNova "
        "is FedAvg where all take as many steps",
    ),
    ("fedntd", "fedcurv"): (
        {"fedcurv-accumulate": True},
        "penalty by the latest importances of all clients so far, as in the authors' code",
    ),
    ("fedntd", "moon"): (
        {"mu": 0.1},
        "weight 0.1, as in the authors' released configuration; with the 1 that the paper prints "
        "MOON ends eleven points below FedAvg here (docs/evidence.md)",
    ),
}
NEUTRAL = {"beta": 0, "mu": 0, "lambda": 1}  # the value at which the method equals its base


def method_parameters(published: Published) -> Keys:
    """Return learning rate, weights and temperatures from column, table or hyperparameters."""
    method, regulariser = method_of(published)
    entry = _hyperparameters(published, method)
    lr = published.number("lr") or entry.get("lr")
    if lr is None:
        raise CannotRunError(Reason.SETTING, "no learning rate stated")
    keys: Keys = {"lr": float(lr), **_fine_tuning(published, method, float(lr))}
    for name, value in entry.get("extra", {}).items():
        if key := _key(method, name):
            keys[key] = value
        else:
            published.notes.append(f"{name}: the paper has {value:g}; here it is not a key")
    keys |= _released(published, method)
    if regulariser is not None:
        return {**keys, "beta": _blend(published), **_added_tau(published, regulariser)}
    return {**keys, **_swept(published, method)}


def _hyperparameters(published: Published, method: str) -> Mapping[str, Any]:
    """Return the paper's hyperparameter entry for a row's method, data set and model, or {}."""
    setting, name = published.setting, str(published.row.method)
    base = METHODS[method].settings_of or method
    others = (SAME_RATE.get(name), SAME_RATE.get(method), base, SAME_RATE.get(base))
    for candidate in (name, method, *others):
        for entry in published.paper.hyperparameters:
            if "lr" not in entry:
                continue
            identity = (entry["method"], entry["dataset"], entry.get("model"))
            if candidate and identity == (candidate, setting["dataset"], setting["model"]):
                if candidate not in (name, method, base):
                    published.notes.append(f"lr: not stated for {name}, taken from {candidate}")
                    return {"lr": entry["lr"]}
                return entry
    return {}


def _fine_tuning(published: Published, method: str, lr: float) -> Keys:
    """Return the fine-tuning keys of a two-step method, from its paper's protocol and column."""
    if not METHODS[method].fine_tuned:
        return {}
    keys: Keys = {"finetune-protocol": published.paper.name}
    column = published.row.column
    if "finetune_lr_factor" in column:
        keys["finetune-lr"] = float(column["finetune_lr_factor"]) * lr
    if "finetune_loss" in column:
        keys["finetune-loss"] = column["finetune_loss"]
    return keys


def _released(published: Published, method: str) -> Keys:
    """Return the keys in which a table's code differs from the method's paper, with a note."""
    keys, words = RELEASED.get((published.paper.name, method), ({}, ""))
    if words:
        published.notes.append(f"{method}: {words}")
    return keys


def _blend(published: Published) -> float:
    """Return beta of "base + regulariser": a number, or the entry in a table of betas."""
    if (beta := published.number("beta")) is not None:
        return float(beta)
    reference = re.search(r"see (\S+)", str(published.setting.get("beta")))
    if reference:
        row = published.row
        for other in published.paper.table(reference[1]).rows:
            if (other.method, other.column) == (row.method, row.column) and other.mean:
                return float(other.mean)
    raise CannotRunError(Reason.SETTING, "weight of an added regulariser")


def _added_tau(published: Published, regulariser: str) -> Keys:
    if regulariser not in USUAL_TEMPERATURES:
        return {}
    tau = USUAL_TEMPERATURES[regulariser]
    published.notes.append(f"tau of the added {regulariser}: not stated, taken as {tau:g}")
    return {"tau": tau}


def _swept(published: Published, method: str) -> Keys:
    """Return the method's parameters in the row's column."""
    keys: Keys = {}
    for name in SWEPT:
        value, key = published.row.column.get(name), _key(method, name)
        if value is None or (key is None and value == NEUTRAL.get(name)):
            continue
        if key is None:
            raise CannotRunError(Reason.SETTING, f"no key for {name}")
        keys[key] = float(value)
    return keys


def _key(method: str, name: str) -> str | None:
    """Return the key of a parameter: the method's own, such as fedexp-epsilon, or a shared one.

    None if the method does not read it from the configuration.
    """
    row = METHODS[method]
    if name in row.defaults or (row.loss.regulariser is not None and name == row.loss.weight):
        return name
    own = f"{method.partition('+')[0]}_{LONG_NAMES.get(name, name)}".replace("-", "_")
    return own.replace("_", "-") if own in RunConfig.model_fields else None
