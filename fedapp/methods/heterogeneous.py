"""Rows of the method table whose clients have different architectures."""

from functools import partial
from typing import Any

from clients.base import LocalClient
from clients.fd import FDClient
from clients.feddor import CountingFedDORClient, FedDORClient
from clients.fedgen import FedGenClient
from clients.fedgh import FedGHClient
from clients.fedkd import FedKDClient
from clients.fedorgp import FedORGPClient
from clients.fedproto import FedProtoClient
from clients.fml import FMLClient
from clients.personal_model import PersonalClient
from fedapp.methods import heterogeneous_keys as keys
from fedapp.methods import heterogeneous_parts as parts
from fedapp.methods.row import (
    CLIENT_TOTAL,
    ClientSpec,
    Exchange,
    HeterogeneousModels,
    Method,
    ServerSpec,
)
from strategies.feddor import FedDOR, FedDORWithoutGenerator
from strategies.fedgen import FedGen
from strategies.fedgh import FedGH
from strategies.fedkd import FedKD
from strategies.fedorgp import FedORGP
from strategies.fedproto import FedProto
from strategies.fedtgp import FedTGP

_WHEN = {"evaluate_when": "eval-when"}
_COLLECTS = {**_WHEN, "collect": "proto-collect"}
_COMPARES = {**_COLLECTS, "rule": "eval-rule"}
_FEDDOR_CLIENT = {
    "ce_weight": "feddor-lambda-ce",
    "weight": "feddor-lambda-align",
    "kind": "feddor-upload",
}
_FEDDOR_SERVER = {"epochs": "feddor-server-epochs", "inter_weight": "feddor-inter-weight"}
_COSINE = HeterogeneousModels("cosine", "feddor-classifier", orthogonal=True)
_COSINE_AS_INITIALISED = HeterogeneousModels("cosine", "feddor-classifier")
_SAME_HEADS = HeterogeneousModels(same_heads=True)
_exchange = partial(Exchange, sends="nothing", keeps="personal model")


def _row(title: str, source: str, **values: Any) -> Method:
    """Return a row of a method whose clients keep their models and do not send them."""
    defaults = {
        "exchange": _exchange(),
        "accuracy": CLIENT_TOTAL,
        "heterogeneous": HeterogeneousModels(),
        "client": ClientSpec(PersonalClient, _WHEN),
    }
    return Method(title, source, **{**defaults, **values})


def _prototypes(
    title: str, source: str, client: type[LocalClient], arguments: dict[str, str], **values: Any
) -> Method:
    """Return a row of a method whose clients upload prototypes and receive a table of prototypes.

    `arguments` maps the client's arguments to their keys, in addition to those of all such methods.
    """
    spec = ClientSpec(client, {**_COMPARES, **arguments})
    return _row(
        title, source, client=spec, **{"exchange": _exchange(also_sends="prototypes"), **values}
    )


HETEROGENEOUS: dict[str, Method] = {
    "feddor": _prototypes(
        "Orthogonal initialisation, generated prototypes with dual regularisation",
        "FedDOR (anonymous), equations 1-6",
        FedDORClient, _FEDDOR_CLIENT,
        server=ServerSpec(
            FedDOR, {**_FEDDOR_SERVER, "first_target": "feddor-first-target"}, parts.feddor
        ),
        heterogeneous=_COSINE,
        keys=keys.FEDDOR,
    ),
    "feddor-no-oi": _prototypes(
        "FedDOR without orthogonal initialisation",
        "FedDOR (anonymous), ablation",
        FedDORClient, _FEDDOR_CLIENT,
        server=ServerSpec(FedDOR, _FEDDOR_SERVER, parts.feddor_without_oi),
        heterogeneous=_COSINE_AS_INITIALISED,
    ),
    "feddor-no-dor": _prototypes(
        "FedDOR without dual regularisation: class means weighted by counts",
        "FedDOR (anonymous), ablation",
        CountingFedDORClient, _FEDDOR_CLIENT,
        server=ServerSpec(FedDORWithoutGenerator, parts=parts.feddor_without_dor),
        exchange=_exchange(also_sends="prototypes, counts"), heterogeneous=_COSINE,
    ),
    "fedproto": _prototypes(
        "Prototypes averaged by class",
        "Tan et al. 2022, AAAI, equations 3-6",
        FedProtoClient, {"weight": "fedproto-lambda", "weighting": "fedproto-weighting"},
        server=ServerSpec(
            FedProto, {"weighting": "fedproto-weighting", "memory": "fedproto-memory"},
            parts.fedproto,
        ),
        exchange=_exchange(also_sends="prototypes, counts"),
        keys=keys.FEDPROTO,
    ),
    "fedtgp": _prototypes(
        "Trained prototypes, separated by an adaptive margin",
        "Zhang et al. 2024, AAAI",
        FedProtoClient, {"weight": "fedtgp-lambda"},
        server=ServerSpec(
            FedTGP,
            {"epochs": "fedtgp-server-epochs", "rule": "fedtgp-margin",
             "largest_margin": "fedtgp-tau"},
            parts.trained_prototypes,
        ),
        keys=keys.FEDTGP,
    ),
    "fedorgp": _prototypes(
        "Trained prototypes with orthogonality regularisation",
        "Guo et al. 2025, arXiv 2502.16119",
        FedORGPClient, {"weight": "fedorgp-lambda", "reduction": "fedorgp-reduction"},
        server=ServerSpec(
            FedORGP,
            {"epochs": "fedorgp-server-epochs", "gamma": "fedorgp-gamma",
             "reduction": "fedorgp-reduction"},
            parts.trained_prototypes,
        ),
        keys=keys.FEDORGP,
    ),
    "fedgh": _row(
        "Global header, trained on the server with the clients' prototypes",
        "Yi et al. 2023, ACM MM, algorithm 1",
        server=ServerSpec(FedGH, {"epochs": "fedgh-server-epochs", **_WHEN}, parts.fedgh),
        client=ClientSpec(FedGHClient, _COLLECTS),
        exchange=_exchange(also_sends="prototypes, header"),
        keys=keys.FEDGH,
    ),
    "fedgen": _row(
        "Averaged heads and a generator of features",
        "Zhu et al. 2021, ICML, data-free variant",
        server=ServerSpec(
            FedGen,
            {"steps": "fedgen-server-steps", "label_query": "fedgen-label-query",
             "diversity": "fedgen-diversity", "warmup": "fedgen-warmup-rounds"},
            parts.fedgen,
        ),
        client=ClientSpec(
            FedGenClient,
            {**_WHEN, "warmup": "fedgen-warmup-rounds", "alpha": "fedgen-alpha"},
            parts.fedgen_client,
        ),
        exchange=_exchange(also_sends="generator, label counts once", sends="head"),
        heterogeneous=_SAME_HEADS,
        keys=keys.FEDGEN,
    ),
    "fedkd": _row(
        "Mutual distillation with a mentee model that is sent compressed",
        "Wu et al. 2022, Nature Communications",
        server=ServerSpec(FedKD, {"sends": "fedkd-sends"}, parts.fedkd),
        client=ClientSpec(
            FedKDClient,
            {**_WHEN, "kl": "fedkd-kl", "detach": "fedkd-detach", "sends": "fedkd-sends"},
            parts.fedkd_client,
        ),
        exchange=_exchange(also_sends="compressed mentee", keeps="personal model, mentee, map"),
        heterogeneous=HeterogeneousModels(second_models=("mentee", "map")),
        scheduled="energy of compressed messages",
        keys=keys.FEDKD,
    ),
    "lg-fedavg": _row(
        "Averaged heads on personal extractors",
        "Liang et al. 2020, arXiv 2001.01523",
        exchange=_exchange(sends="head"), heterogeneous=_SAME_HEADS,
    ),
    "fd": _prototypes(
        "Distillation of each class's mean logits",
        "Jeong et al. 2018, arXiv 1811.11479",
        FDClient, {"weight": "fd-lambda"},
        server=ServerSpec(FedProto, parts=parts.fd), exchange=_exchange(also_sends="mean logits"),
        keys=keys.FD,
    ),
    "fml": _row(
        "Mutual distillation with an averaged meme model",
        "Shen et al. 2020, arXiv 2006.16765",
        client=ClientSpec(
            FMLClient,
            {**_WHEN, "alpha": "fml-alpha", "beta": "fml-beta", "kl": "fml-kl",
             "detach": "fml-detach"},
        ),
        exchange=_exchange(sends="mentee", keeps="personal model, mentee"),
        heterogeneous=HeterogeneousModels(second_models=("mentee",)),
        fixed={"weights": "uniform"}, keys=keys.FML,
    ),
    "local-hetero": _row("Every client trains its own architecture alone", "reference"),
}  # fmt: skip
