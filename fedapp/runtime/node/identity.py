"""The identity of a node: its partition, the clients it hosts, its configuration and its data.

The server queries every node before round 1. It refuses, by name, nodes with another protocol,
another configuration, another frozen head or another copy of the data.
"""

import os
import platform
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import Context

import fedapp
from fedapp.config.node_keys import check_node_config
from fedapp.core.errors import UserError
from fedapp.runtime.node.ledger import (
    Ledger,
    check_evaluation,
    check_one_client,
    check_training,
    unsaid,
)
from fedapp.runtime.node.secure import check_masked, secure_node
from fedapp.runtime.node.state_folder import state_folder_of
from fedapp.runtime.process.context import ProcessContext, config_of, open_process
from strategies.rounds.records import PROTOCOL_VERSION

IMAGES = "set of images"  # the name of the data hash in an identity
ROUNDS_LEFT = "rounds left"  # by the node's own limit of epsilon, if it has one


def hosted_clients(node_config: Mapping[str, Any], partition: str, num_clients: int) -> list[int]:
    """Return the clients that a node hosts: node p of P hosts the clients c with c mod P = p.

    A node that hosts any client has all data.
    """
    partition_id, num_partitions = _partition_of(node_config)
    if hosts_any(node_config, partition):
        return list(range(num_clients))
    return list(range(partition_id, num_clients, num_partitions))


def hosts_any(node_config: Mapping[str, Any], partition: str) -> bool:
    """Return whether a node can host any client: its node-config key `hosts` is "any".

    The variable FEDAPP_HOSTS is the key's default on a machine. It is for nodes whose node-config
    cannot be given, as those of `flwr run`, and counts if every node has all data. Raises UserError
    for another value.
    """
    source, hosts = "node-config key 'hosts'", node_config.get("hosts")
    if hosts is None and partition != "own":
        source, hosts = "environment variable FEDAPP_HOSTS", os.environ.get("FEDAPP_HOSTS")
    if hosts not in (None, "own", "any"):
        raise UserError(f"{source} is {hosts!r} but must be own or any")
    return hosts == "any"


def describe(context: Context) -> dict[str, Any]:
    """Return a node's identity as scalars and lists: its reply to the server's query."""
    check_node_config(context.node_config)
    partition_id, num_partitions = _partition_of(context.node_config)
    ledger = Ledger.of(context.node_config)
    config = config_of(context.run_config)
    check_one_client(ledger, config)
    clients = hosted_clients(context.node_config, config.partition, config.num_clients)
    if config.partition == "own":
        _check_own(clients, partition_id, num_partitions, config.num_clients)
    with unsaid(ledger):
        process = open_process(context.run_config, context.node_config)
    check_masked(context.node_config, config.secure_aggregation != "off")
    secure_node(context)  # unreadable keys are reported before round 1
    rounds_left = _rounds_left(ledger, process)
    if process.keeps:
        chosen = str(context.node_config.get("state-dir") or config.state_dir)
        state_folder_of(chosen, f"clients of this method keep {process.keeps}")
    return {
        "partition-id": partition_id,
        "num-partitions": num_partitions,
        "clients": clients,
        "hosts-any": hosts_any(context.node_config, config.partition),
        "examples": [len(process.data.partition.train[client]) for client in clients],
        **({} if rounds_left is None else {ROUNDS_LEFT: rounds_left}),
        "protocol": PROTOCOL_VERSION,
        **shared_properties(process),
        "device": str(process.device),
        "host": platform.node(),
        "versions": f"fedapp {fedapp.__version__}, torch {torch.__version__}, "
        f"numpy {np.__version__}",
    }


def _rounds_left(ledger: Ledger | None, process: ProcessContext) -> int | None:
    """Return how many rounds of this run the node's ledger allows; None if it has none.

    Raises UserError if the run tells what the node does not count.
    """
    if ledger is None:
        return None
    config = process.config
    check_training(ledger, process, config.secure_aggregation != "off")
    if config.client_evaluation_every:
        check_evaluation(ledger)
    ledger.check_writable()
    return ledger.rounds_left(float(config.dp_noise), config.num_rounds)


def _check_own(
    clients: list[int], partition_id: int, num_partitions: int, num_clients: int
) -> None:
    """Raise UserError unless the node hosts exactly the client with its own partition-id."""
    if clients != [partition_id]:
        raise UserError(
            f"with partition 'own' every client has a SuperNode: num-partitions is "
            f"{num_partitions} but must be num-clients, {num_clients}"
        )


def shared_properties(process: ProcessContext) -> dict[str, str]:
    """Return what server and nodes must share, by display names: files, configuration, data.

    The first that differs is the one that an error names.
    With partition 'own' every client has its own images; only their classes and form must agree.
    """
    data = process.data.dataset
    size = f"{data.image_size}x{data.image_size}, {data.channels} channels"
    return {
        **process.files,
        "configuration": process.config.fingerprint(),
        "head": process.head_hash(),
        "list of classes": data.classes_hash(),
        "form of images": size,
        **({} if process.config.partition == "own" else {IMAGES: process.data.hash}),
        "initial model": process.initial_hash,
    }


def _partition_of(node_config: Mapping[str, Any]) -> tuple[int, int]:
    """Return partition-id and num-partitions; raises UserError that names a missing or bad key."""
    numbers = []
    for key in ("partition-id", "num-partitions"):
        value = node_config.get(key)
        if not re.fullmatch(r"-?[0-9]{1,9}", str(value)):
            problem = "is missing" if value is None else f"is {value!r}, not a whole number"
            raise UserError(
                f"this node has no partition: start the SuperNode with --node-config "
                f"\"partition-id=0 num-partitions=4\" ('{key}' {problem})"
            )
        numbers.append(int(str(value)))  # also of the text '0'
    partition_id, num_partitions = numbers
    if not 0 <= partition_id < num_partitions:
        raise UserError(
            f"partition-id is {partition_id} but must be from 0 to {num_partitions - 1} "
            f"(num-partitions is {num_partitions})"
        )
    return partition_id, num_partitions
