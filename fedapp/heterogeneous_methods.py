"""Rows of the method table whose clients have architectures of their own.

Only these rows know which arguments their strategies and clients take from a node, beside
configuration keys: the sizes of prototypes, seeds and the orthogonal rows.
"""

from typing import Any

from clients.feddor import CountingFedDORClient, FedDORClient
from fedapp.method import CLIENT_TOTAL, Method, PersonalModels
from fedapp.rng import Stream, torch_rng, torch_seed
from strategies.feddor import FedDOR, FedDORWithoutGenerator
from strategies.server_training import gaussian_embedding


def _sizes(node: Any) -> dict[str, Any]:
    """Return the sizes of a table of prototypes."""
    width = int(node.config.feature_dim)
    return {"num_classes": node.dataset.num_classes, "width": width}


def _server(node: Any) -> dict[str, Any]:
    """Return the random numbers and the optimiser of what a server trains."""
    config = node.config
    return {
        "seed": torch_seed(config.seed, Stream.SERVER),
        "draw": lambda server_round: torch_rng(config.seed, Stream.SERVER, server_round),
        "lr_server": config.proto_server_lr,
        "batch_size": config.proto_batch_size,
    }


def _gaussian(node: Any) -> Any:
    sizes = _sizes(node)
    seed = torch_seed(node.config.seed, Stream.SERVER, 0, 1)
    return gaussian_embedding(sizes["num_classes"], sizes["width"], seed).numpy()


def _feddor(node: Any) -> dict[str, Any]:
    residual = node.config.feddor_generator == "residual"
    rows = node.personal.rows
    return {**_sizes(node), **_server(node), "embedding": rows, "residual": residual}


def _feddor_without_oi(node: Any) -> dict[str, Any]:
    return {**_feddor(node), "embedding": _gaussian(node), "first_target": "none"}


def _feddor_without_dor(node: Any) -> dict[str, Any]:
    return {**_sizes(node), "first": node.personal.rows}


_EVALUATION = {"evaluate_when": "eval-when", "rule": "eval-rule"}
_FEDDOR_CLIENT = {
    **_EVALUATION,
    "ce_weight": "feddor-lambda-ce",
    "weight": "feddor-lambda-align",
    "kind": "feddor-upload",
}
_FEDDOR_SERVER = {"epochs": "feddor-server-epochs", "inter_weight": "feddor-inter-weight"}
_COSINE = PersonalModels("cosine", "feddor-classifier", orthogonal=True)
_COSINE_AS_INITIALISED = PersonalModels("cosine", "feddor-classifier")
_PROTOTYPES = "prototypes"
_MODEL = "personal model"


def _row(title: str, source: str, **values: Any) -> Method:
    """Return a row of a method whose models stay with the clients."""
    return Method(
        title,
        source,
        **{
            "sends": "nothing",
            "also_sends": _PROTOTYPES,
            "keeps": _MODEL,
            "accuracy": CLIENT_TOTAL,
            "personal": PersonalModels(),
            "client_options": _EVALUATION,
            **values,
        },
    )


HETEROGENEOUS: dict[str, Method] = {
    "feddor": _row(
        "Orthogonal initialisation, generated prototypes with dual regularisation",
        "FedDOR (anonymous), equations 1-6",
        strategy=FedDOR,
        options={**_FEDDOR_SERVER, "first_target": "feddor-first-target"},
        strategy_parts=_feddor,
        client=FedDORClient,
        client_options=_FEDDOR_CLIENT,
        personal=_COSINE,
    ),
    "feddor-no-oi": _row(
        "FedDOR without orthogonal initialisation",
        "FedDOR (anonymous), ablation",
        strategy=FedDOR,
        options=_FEDDOR_SERVER,
        strategy_parts=_feddor_without_oi,
        client=FedDORClient,
        client_options=_FEDDOR_CLIENT,
        personal=_COSINE_AS_INITIALISED,
    ),
    "feddor-no-dor": _row(
        "FedDOR without dual regularisation: counted class means",
        "FedDOR (anonymous), ablation",
        strategy=FedDORWithoutGenerator,
        strategy_parts=_feddor_without_dor,
        client=CountingFedDORClient,
        client_options=_FEDDOR_CLIENT,
        personal=_COSINE,
        also_sends="prototypes, counts",
    ),
}
