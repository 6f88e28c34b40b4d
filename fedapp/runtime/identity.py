"""Who a node is, and which clients it hosts.

The server asks every node before round 1 and refuses, by name, nodes that would train something
else: another protocol, another configuration, another frozen head or another copy of the data.
"""

import platform
from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Context

import fedapp
from fedapp.core.errors import UserError
from fedapp.models.initial import digest
from fedapp.runtime.process import ProcessContext, open_process
from strategies.rounds.records import PROTOCOL_VERSION

IMAGES = "set of images"  # what a node says of its copy of the data


def hosted_clients(context: Context, num_clients: int) -> list[int]:
    """Return the clients of a process: node p of P hosts the clients c with c mod P = p.

    A virtual node with node-config `hosts="any"` has the data of all clients at hand.
    """
    partition_id, num_partitions = _place(context.node_config)
    if hosts_any(context.node_config):
        return list(range(num_clients))
    return list(range(partition_id, num_clients, num_partitions))


def hosts_any(node_config: Mapping[str, Any]) -> bool:
    """Return whether a node can host any client; raises UserError for another wish."""
    wish = node_config.get("hosts", "own")
    if wish not in ("own", "any"):
        raise UserError(f"node-config key 'hosts' is {wish!r} but must be own or any")
    return bool(wish == "any")


def describe(context: Context) -> dict[str, Any]:
    """Return a node's identity as scalars and lists, the answer to the server's first question."""
    import torch

    partition_id, num_partitions = _place(context.node_config)
    if context.run_config.get("partition") == "own":
        _check_own(context)
    process = open_process(context.run_config, context.node_config)
    clients = hosted_clients(context, process.config.num_clients)
    return {
        "partition-id": partition_id,
        "num-partitions": num_partitions,
        "clients": clients,
        "hosts-any": hosts_any(context.node_config),
        "examples": [len(process.data.partition.train[client]) for client in clients],
        "protocol": PROTOCOL_VERSION,
        "configuration": process.config.fingerprint(),
        "head": process.head_hash(),
        **form(process),
        "device": str(process.device),
        "host": platform.node(),
        "versions": f"fedapp {fedapp.__version__}, torch {torch.__version__}, "
        f"numpy {np.__version__}",
    }


def _check_own(context: Context) -> None:
    """Raise UserError unless the node hosts one client, which has the node's number."""
    partition_id, num_partitions = _place(context.node_config)
    num_clients = int(context.run_config["num-clients"])
    if hosted_clients(context, num_clients) != [partition_id]:
        raise UserError(
            f"with partition 'own' every client has a SuperNode: num-partitions is "
            f"{num_partitions} but must be num-clients, {num_clients}"
        )


def form(process: ProcessContext) -> dict[str, str]:
    """Return what the data of server and nodes must have in common, by names for a sentence.

    Where every client has images of its own, these are the form of the images and their classes.
    """
    data = process.data.dataset
    size = f"{data.image_size}x{data.image_size}, {data.channels} channels"
    return {
        "list of classes": data.classes_hash(),
        "form of images": size,
        **({} if process.config.partition == "own" else {IMAGES: process.data.hash}),
        "initial model": digest(process.initial),
    }


def _place(node_config: Mapping[str, Any]) -> tuple[int, int]:
    """Read which node of how many this is; raises UserError naming the missing or wrong key."""
    try:
        partition_id = int(node_config["partition-id"])
        num_partitions = int(node_config["num-partitions"])
    except KeyError as missing:
        raise UserError(
            f"this node does not know its place: start the SuperNode with --node-config "
            f'"partition-id=0 num-partitions=4" ({missing} is missing)'
        ) from None
    if not 0 <= partition_id < num_partitions:
        raise UserError(
            f"partition-id is {partition_id} but must be from 0 to {num_partitions - 1} "
            f"(num-partitions is {num_partitions})"
        )
    return partition_id, num_partitions
