"""What the strategies and clients of `fedapp.methods.heterogeneous` take beside configuration keys.

Only a process can give it: the sizes of prototypes, random numbers, modules, the orthogonal rows.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from clients.training.arrays import to_arrays
from fedapp.core.rng import Stream, torch_rng, torch_seed
from fedapp.methods.setup import MethodSetup
from strategies.low_rank import LowRank
from strategies.prototypes.training import FeatureGenerator, gaussian_embedding
from strategies.prototypes.uploads import TableShape

_NOISE, _GENERATOR_WIDTH = 32, 512  # FedGen specification 4.1


def _shape(setup: MethodSetup) -> TableShape:
    during = setup.values["proto-collect"] == "during"
    passes = setup.number("local-epochs") if during else 1
    return TableShape(setup.num_classes, setup.number("feature-dim"), passes)


def fedproto(setup: MethodSetup) -> dict[str, Any]:
    """Return the shape of FedProto's prototypes."""
    return {"shape": _shape(setup)}


def _server(setup: MethodSetup) -> dict[str, Any]:
    """Return seed, generator and optimiser settings for what a server trains."""
    seed = setup.number("seed")
    return {
        "seed": torch_seed(seed, Stream.SERVER),
        "draw": lambda server_round: torch_rng(seed, Stream.SERVER, server_round),
        "lr_server": setup.values["proto-server-lr"],
        "batch_size": setup.values["proto-batch-size"],
    }


def _embedding_seed(setup: MethodSetup) -> int:
    """Return the seed of a server's embedding, if the server draws its own."""
    return torch_seed(setup.number("seed"), Stream.SERVER, 0, 1)


def _gaussian(setup: MethodSetup) -> np.ndarray:
    width = setup.number("feature-dim")
    return gaussian_embedding(setup.num_classes, width, _embedding_seed(setup)).numpy()


def feddor(setup: MethodSetup) -> dict[str, Any]:
    """Return G(E)'s parts for FedDOR, and the orthogonal rows."""
    rows = embedding = setup.personal().rows
    if not setup.values["feddor-oi-shared-seed"]:
        seed, width = _embedding_seed(setup), setup.number("feature-dim")
        embedding = setup.personal().orthogonal(width, seed).numpy()
    parts = {"rows": rows, "embedding": embedding, "start": setup.values["feddor-generator"]}
    return {"shape": _shape(setup), **_server(setup), **parts}


def feddor_without_oi(setup: MethodSetup) -> dict[str, Any]:
    """Return the same with E from N(0, 1) and nothing fitted to it."""
    parts = {**feddor(setup), "embedding": _gaussian(setup), "first_target": "none"}
    return parts if parts["start"] != "fitted" else {**parts, "start": "plain"}


def feddor_without_dor(setup: MethodSetup) -> dict[str, Any]:
    """Return the orthogonal rows as the first table."""
    return {"shape": _shape(setup), "first": setup.personal().rows}


def trained_prototypes(setup: MethodSetup) -> dict[str, Any]:
    """Return G(E)'s parts for FedTGP and FedORGP, E from N(0, 1)."""
    return {"shape": _shape(setup), **_server(setup), "embedding": _gaussian(setup)}


def fd(setup: MethodSetup) -> dict[str, Any]:
    """Return the shape of FD's prototypes, which are mean logits."""
    return {"shape": replace(_shape(setup), width=setup.num_classes)}


def fedgh(setup: MethodSetup) -> dict[str, Any]:
    """Return FedGH's headers, one for each shape of heads, and what trains them."""
    parts, personal = _server(setup), setup.personal()
    del parts["seed"]
    headers = {width: personal.header(width) for width in sorted(set(personal.group.hidden))}
    given = {"headers": headers, "hidden_of": personal.group.hidden_of}
    return {"shape": _shape(setup), **parts, **given}


def _generator(setup: MethodSetup) -> FeatureGenerator:
    seed = torch_seed(setup.number("seed"), Stream.SERVER)
    width = setup.number("feature-dim")
    return FeatureGenerator(setup.num_classes, width, _NOISE, _GENERATOR_WIDTH, seed)


def fedgen(setup: MethodSetup) -> dict[str, Any]:
    """Return FedGen's generator and what trains it."""
    parts = _server(setup)
    return {
        "generator": _generator(setup),
        "draw": parts["draw"],
        "batch_size": parts["batch_size"],
    }


def fedgen_client(setup: MethodSetup) -> dict[str, Any]:
    """Return how FedGen's clients build the generator that they receive."""
    return {"generator": lambda: _generator(setup), "noise": _NOISE}


def codec(setup: MethodSetup) -> dict[str, Any]:
    """Return FedKD's compression, which depends on the number of rounds."""
    start, end = setup.values["fedkd-energy-start"], setup.values["fedkd-energy-end"]
    low_rank = LowRank(start, end, setup.number("num-rounds"))
    return {"compress": low_rank.compress, "decompress": low_rank.decompress}


def fedkd(setup: MethodSetup) -> dict[str, Any]:
    """Return FedKD's compression and the initial mentee."""
    mentee = setup.model.get_submodule("mentee")
    return {**codec(setup), "mentee": to_arrays(dict(mentee.named_parameters()))}
