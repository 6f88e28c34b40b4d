"""What the strategies and clients of `fedapp.methods.heterogeneous` take beside configuration keys.

Only a process can give it: the sizes of prototypes, random numbers, modules, the orthogonal rows.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from clients.state.memory import REINIT
from clients.training.arrays import to_arrays
from fedapp.core.errors import UserError
from fedapp.core.rng import Stream, seeded, torch_rng, torch_seed
from fedapp.methods.setup import MethodSetup
from strategies.low_rank import LowRank
from strategies.prototypes.training import (
    FeatureGenerator,
    PrototypeMaker,
    ServerTraining,
    gaussian_embedding,
)
from strategies.prototypes.uploads import TableShape

_NOISE, _GENERATOR_WIDTH = 32, 512  # lengths of FedGen's noise and its generator's hidden layer


def _shape(setup: MethodSetup) -> TableShape:
    during = setup.values["proto-collect"] == "during"
    passes = setup.number("local-epochs") if during else 1
    return TableShape(setup.num_classes, setup.number("feature-dim"), passes)


def _training(setup: MethodSetup, lr: str = "proto-server-lr") -> ServerTraining:
    draw = partial(torch_rng, setup.number("seed"), Stream.SERVER)
    return ServerTraining(draw, setup.values[lr], setup.number("proto-batch-size"))


def _seed(setup: MethodSetup, part: int) -> int:
    """Return the seed of a server's module (part 0), or of an embedding of its own (part 1)."""
    return torch_seed(setup.number("seed"), Stream.SERVER, 0, part)


def _trained(setup: MethodSetup, embedding: Tensor, start: str) -> dict[str, Any]:
    """Return G(E), with the initial E [C, K], and how it is trained."""
    with seeded(_seed(setup, 0)):
        maker = PrototypeMaker(embedding, start)
    return {"shape": _shape(setup), "maker": maker, "training": _training(setup)}


def feddor(setup: MethodSetup) -> dict[str, Any]:
    """Return G(E), how it is trained, and the orthogonal rows."""
    rows = setup.heterogeneous().rows
    embedding = torch.from_numpy(rows)
    if not setup.values["feddor-oi-shared-seed"]:
        width = setup.number("feature-dim")
        embedding = setup.heterogeneous().orthogonal(width, _seed(setup, 1))
    return {**_trained(setup, embedding, setup.values["feddor-generator"]), "rows": rows}


def feddor_without_oi(setup: MethodSetup) -> dict[str, Any]:
    """Return the same for E from N(0, 1), to which nothing is fitted, without a first target."""
    return trained_prototypes(setup, "plain")


def feddor_without_dor(setup: MethodSetup) -> dict[str, Any]:
    """Return the orthogonal rows as the first table."""
    return {"shape": _shape(setup), "first": setup.heterogeneous().rows}


def trained_prototypes(setup: MethodSetup, start: str = "plain") -> dict[str, Any]:
    """Return G(E) with E from N(0, 1), and how it is trained."""
    width = setup.number("feature-dim")
    embedding = gaussian_embedding(setup.num_classes, width, _seed(setup, 1))
    return _trained(setup, embedding, start)


def fedproto(setup: MethodSetup) -> dict[str, Any]:
    """Return the shape of FedProto's prototypes."""
    return {"shape": _shape(setup)}


def fd(setup: MethodSetup) -> dict[str, Any]:
    """Return the shape of FD's prototypes, mean logits, of which the server takes plain means."""
    shape = replace(_shape(setup), width=setup.num_classes)
    return {"shape": shape, "weighting": "uniform", "memory": False}


def fedgh(setup: MethodSetup) -> dict[str, Any]:
    """Return FedGH's headers, one for each shape of heads, and how they are trained."""
    models = setup.heterogeneous()
    headers = {width: models.header(width) for width in sorted(set(models.group.hidden))}
    given = {"headers": headers, "hidden_of": models.group.hidden_of}
    return {"shape": _shape(setup), "training": _training(setup), **given}


def _generator(setup: MethodSetup) -> FeatureGenerator:
    classes, width = setup.num_classes, setup.number("feature-dim")
    with seeded(_seed(setup, 0)):
        return FeatureGenerator(classes, width, _NOISE, _GENERATOR_WIDTH)


def fedgen(setup: MethodSetup) -> dict[str, Any]:
    """Return FedGen's generator and how it is trained."""
    if setup.number("proto-batch-size") == 1:
        raise UserError(
            "run-config key 'proto-batch-size' is 1, but FedGen's generator has BatchNorm, which "
            "needs 2 or more"
        )
    return {"generator": _generator(setup), "training": _training(setup, "fedgen-server-lr")}


def fedgen_client(setup: MethodSetup) -> dict[str, Any]:
    """Return how FedGen's clients build the generator that they receive."""
    return {"generator": lambda: _generator(setup), "noise": _NOISE}


def fedkd_client(setup: MethodSetup) -> dict[str, Any]:
    """Return FedKD's compression, which depends on the number of rounds."""
    start, end = setup.values["fedkd-energy-start"], setup.values["fedkd-energy-end"]
    truncation = setup.values["fedkd-truncation"]
    low_rank = LowRank(start, end, setup.number("num-rounds"), truncation)
    return {"compress": low_rank.compress, "decompress": low_rank.decompress}


def fedkd(setup: MethodSetup) -> dict[str, Any]:
    """Return FedKD's compression, the initial mentee, and whether clients may lose theirs."""
    mentee = to_arrays(dict(setup.model.get_submodule("mentee").named_parameters()))
    whole = setup.values["state-missing"] == REINIT
    return {**fedkd_client(setup), "mentee": mentee, "whole": whole}
