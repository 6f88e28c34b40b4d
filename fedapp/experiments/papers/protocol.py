"""The conversion of a published setting to run-config keys, with one function per group of keys.

Each value that the paper does not state gets a note in the cell. What fedapp cannot do raises
`CannotRunError` with a `Reason`. The reasons are checked in the order of `Reason`, so a row whose
method is missing reports only that.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from clients.base import LocalClient
from clients.training.objective import REGULARISERS
from fedapp.data.datasets import DATASETS
from fedapp.experiments.papers.metrics import (
    ACCURACY,
    BEST,
    OWN_IMAGES,
    PAPER_METRICS,
    PERSONAL,
    reports_best_round,
)
from fedapp.experiments.papers.tables import Paper, Row, Table
from fedapp.methods.row import GLOBAL, Method
from fedapp.methods.table import METHODS
from fedapp.models.backbones import BACKBONES
from fedapp.models.groups import MODEL_GROUPS

Keys = dict[str, Any]


class Reason(StrEnum):
    """Why no run can reproduce a published number."""

    SETTING_ROW = "a setting, not a result"
    NO_NUMBER = "no number published"
    METHOD = "method not in fedapp"
    DATASET = "data set not in fedapp"
    MODEL = "model not in fedapp"
    METRIC = "metric not measured by a run"
    PARTITION = "partition not in fedapp"
    SETTING = "setting not stated or not in fedapp"
    REFUSED = "configuration refused"
    DATA = "data set not on this machine"


class CannotRunError(Exception):
    """A number cannot be reproduced: a `Reason` and the missing item."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason, self.detail = reason, detail


@dataclass(frozen=True)
class Published:
    """One row with its table and its paper."""

    paper: Paper
    table: Table
    row: Row
    notes: list[str] = field(default_factory=list)  # about values that the paper does not state

    @property
    def setting(self) -> Mapping[str, Any]:
        """The table's setting, overridden by the row's column."""
        return {**self.table.setting, **self.row.column}

    def number(self, key: str) -> float | None:
        """Return a number of the setting, which may depend on the data set; None for text."""
        value = self.setting.get(key)
        if isinstance(value, Mapping):
            value = value.get(self.setting.get("dataset"))
        if isinstance(value, str) and (stated := re.fullmatch(r"([\d.]+), or in column", value)):
            value = float(stated[1])
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None

    def stated(self, key: str) -> float:
        """Return a number that a run needs; if the paper has none, return the assumed value."""
        value = self.number(key)
        if value is None:
            value = UNSTATED.get(self.paper.name, {}).get(key)
            if value is None:
                raise CannotRunError(Reason.SETTING, f"{key.replace('_', ' ')} not stated")
            self.notes.append(f"{key.replace('_', ' ')}: not stated, taken as {value:g}")
        return value

    def whole(self, key: str) -> int:
        """Return `stated` as a whole number."""
        return int(self.stated(key))


# Other names of methods of the table.
SAME_METHOD = {
    "ce-frozen": "fedbabu", "local-ce": "local", "local-ce-etf": "local-etf",
    "fedavg+kd-ntd": "kd-ntd", "centralized": "centralised",
}  # fmt: skip
ENDS = {("fedavg+kd", "lambda"): "kd-ntd"}  # method ids whose column interpolates to another method
MODELS = {"2conv+2fc cnn": "cnn"}
GROUP_NAMES = {name.lower(): name for name in MODEL_GROUPS}
SETTINGS_AS_METRICS = ("beta",)
HIDDEN_LAYER = "linear_1 (512)"
LOCAL_ANALYSES = ("weight-alignment",)
STOCHASTIC_EVERY = 10  # FedDr+ table 16: rounds after which the missing class changes
# FedDr+, whose code base FedFN shares, states FedFN's values.
UNSTATED: dict[str, dict[str, float]] = {
    "fedfn": {"batch_size": 50, "momentum": 0.9, "weight_decay": 1e-5},
    "feddor": {"momentum": 0.0, "weight_decay": 0.0},  # it states only "SGD"
}
UNSTATED_SEEDS = {"fedntd": 3}
BALANCED_IID = {"feddr+", "fedfn"}  # both assign every class equally
TESTED_BY_CLIENTS = {"feddr+", "fedfn"}  # with shards, by their accuracies: docs/evidence.md


def split_method(name: str | None) -> tuple[str, str | None]:
    """Return (method, regulariser) of an id such as "fedavg+ntd"; raises `CannotRunError`."""
    if name is None:
        raise CannotRunError(Reason.SETTING_ROW, "the row has no method")
    name = SAME_METHOD.get(name, name)
    if name in METHODS:
        return name, None
    base, _, regulariser = name.rpartition("+")
    if base in METHODS and regulariser in REGULARISERS:
        return base, regulariser
    raise CannotRunError(Reason.METHOD, name)


def method_of(published: Published) -> tuple[str, str | None]:
    """Return (method, regulariser) of a published number; raises `CannotRunError`."""
    row = published.row
    renamed = {name: other for (name, column), other in ENDS.items() if column in row.column}
    return split_method(renamed.get(row.method or "", row.method))


def method_keys(published: Published) -> Keys:
    """Return method and regulariser."""
    method, regulariser = method_of(published)
    return {"method": method, **({"regulariser": regulariser} if regulariser else {})}


def data_keys(published: Published) -> Keys:
    """Return data set and model."""
    dataset, model = str(published.setting.get("dataset")), str(published.setting.get("model"))
    if dataset not in DATASETS:
        raise CannotRunError(Reason.DATASET, dataset)
    if model in GROUP_NAMES:
        _check_heads(published, GROUP_NAMES[model])
        width = published.number("feature_dim")
        keys: Keys = {"dataset": dataset, "model-group": GROUP_NAMES[model]}
        return {**keys, "feature-dim": int(width)} if width else keys
    if MODELS.get(model, model) not in BACKBONES:
        raise CannotRunError(Reason.MODEL, model)
    return {"dataset": dataset, "model": MODELS.get(model, model)}


def _check_heads(published: Published, group: str) -> None:
    """Raise `CannotRunError` if a method averages different heads: "-" in the papers."""
    models = METHODS[method_of(published)[0]].heterogeneous
    if models is not None and models.same_heads and not MODEL_GROUPS[group].same_heads:
        raise CannotRunError(Reason.SETTING, "heads of different shapes cannot be averaged")


def metric_keys(published: Published) -> Keys:
    """Return the analysis that the row's metric needs, if any."""
    measure = measure_name(published)
    if measure not in PAPER_METRICS:
        raise CannotRunError(Reason.METRIC, measure)
    analyses = PAPER_METRICS[measure].analyses
    keys: Keys = {"analyses": analyses} if analyses else {}
    if PAPER_METRICS[measure].asks_clients:
        keys["client-eval-every"] = published.whole("rounds")  # after the last round
    if analyses in LOCAL_ANALYSES:
        keys["analysis-clients"] = 0  # all clients of the round, as published
    return keys


def measure_name(published: Published) -> str:
    """Return the key of `PAPER_METRICS` for a row, from its metric and its setting."""
    row = published.row
    if row.metric in SETTINGS_AS_METRICS:
        raise CannotRunError(Reason.SETTING_ROW, f"the {row.metric} that its authors chose")
    if "layer" in row.column:
        if row.column["layer"] != HIDDEN_LAYER:
            detail = f"layer {row.column['layer']}, which the released model does not have"
            raise CannotRunError(Reason.MODEL, detail)
        return f"{row.metric} {row.column['compare']}"
    method, _ = method_of(published)
    if row.metric == PERSONAL and METHODS[method].accuracy == GLOBAL:
        return f"{PERSONAL} of the global model"
    if tested_by_clients(published):
        return f"{ACCURACY}{OWN_IMAGES}"
    return f"{BEST if reports_best_round(published.setting) else ''}{row.metric}"


def normalises_by_batch(published: Published) -> bool:
    """Return whether the model's BatchNorm makes its accuracy depend on the test batches."""
    if "pretrained" in published.setting:
        return False  # these tables have running statistics: special_keys
    model = str(published.setting.get("model"))
    backbone = BACKBONES.get(MODELS.get(model, model))
    return backbone is not None and backbone.has_batch_norm


def predicts_by_the_global_model(row: Method) -> bool:
    """Return whether clients add nothing of their own to the logits, as FedGELA's do."""
    return row.client.kind.logit_scale is LocalClient.logit_scale


def tested_by_clients(published: Published) -> bool:
    """Return whether a number is the global model's accuracy on each client's own test images."""
    method, _ = method_of(published)
    return (
        published.row.metric == ACCURACY
        and published.paper.name in TESTED_BY_CLIENTS
        and METHODS[method].accuracy == GLOBAL
        and predicts_by_the_global_model(METHODS[method])
        and normalises_by_batch(published)
        and _partition_kind(published) == "shard"
        and not in_one_place(published)
    )


def partition_keys(published: Published) -> Keys:
    """Return the keys of the partition."""
    if in_one_place(published):
        return {}
    partition = published.setting.get("partition")
    match partition:
        case {"kind": "shard", "s": int(shards)}:
            return {"partition": "shards", "shards": shards}
        case {"kind": "lda", "alpha": float() | int() as alpha}:
            return {"partition": "lda", "alpha": float(alpha)}
        case {"kind": "dirichlet", "alpha": float() | int() as alpha}:
            return {"partition": "dirichlet", "alpha": float(alpha)}
        case {"kind": "pathological", "classes_per_client": int(classes)}:
            return {"partition": "pathological", "classes-per-client": classes}
        case {"kind": "pathological"}:
            published.notes.append("classes per client: not stated, taken as the data set's usual")
            return {"partition": "pathological"}
        case {"kind": "iid"}:
            return {"partition": "stratified" if published.paper.name in BALANCED_IID else "iid"}
    raise CannotRunError(Reason.PARTITION, str(_partition_kind(published) or "none"))


def _partition_kind(published: Published) -> object:
    partition = published.setting.get("partition")
    return partition.get("kind") if isinstance(partition, Mapping) else partition


def in_one_place(published: Published) -> bool:
    """Return whether the method trains centrally on all images, for any setting of the table."""
    method, _ = method_of(published)
    return METHODS[method].fixed.get("num_clients") == 1


def special_keys(published: Published) -> Keys:
    """Return the keys that few tables vary."""
    setting = published.setting
    if setting.get("client_data") == "stochastic":
        return {"stochastic-every": STOCHASTIC_EVERY}
    if "pretrained" not in setting:
        return {}
    published.notes.append("bn: running statistics, which the pre-trained weights come with")
    published.notes.append("model: ResNet-18 with ImageNet's 7x7 stem; the paper does not say")
    weights = {"initial-model": "imagenet"} if setting["pretrained"] else {}
    return {"model": "resnet18-imagenet-stem", "bn": "running", **weights}


def published_seeds(published: Published) -> int:
    """Return the number of seeds of a mean, if the paper states it, otherwise a default."""
    seeds = published.setting.get("seeds")
    if isinstance(seeds, int):
        return seeds
    return UNSTATED_SEEDS.get(published.paper.name, 1)
