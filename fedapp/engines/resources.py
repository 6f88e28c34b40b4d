"""The resources of a simulation: nodes, workers and shares of GPUs."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from fedapp.core.errors import UserError
from fedapp.core.hardware import cores, gpu_names


class Engine(StrEnum):
    """The kind of a run's nodes; the result is the same, bit for bit."""

    WORKERS = "workers"  # the app's worker processes: shortest start
    RAY = "ray"  # virtual SuperNodes on Ray workers; with RAY_ADDRESS a cluster's
    IN_PROCESS = (
        "in-process"  # plain calls in one process: least memory, for many simultaneous runs
    )


@dataclass(frozen=True)
class Resources:
    """The resources of a simulation; 0 means automatic."""

    nodes: int = 0
    workers: int = 0
    gpus: float = -1.0  # per worker

    def __post_init__(self) -> None:
        """Raise UserError if the share of GPUs is no number of GPUs."""
        if not math.isfinite(self.gpus):
            raise UserError(f"--gpus is {self.gpus}; give a share of a GPU per worker, such as 0.5")

    def resolve(
        self,
        num_clients: int,
        participation: float = 1.0,
        pool: bool = False,
        device: str = "auto",
    ) -> "Resources":
        """Set automatic values from the machine's cores, and its GPUs unless `device` is cpu.

        A worker sees only the GPU that it shares; for a device "cuda:N" it sees all GPUs.

        One worker trains a node's clients, one after the other. Nodes of a `pool` can host any
        client, so the server divides a round's clients evenly, and one node per worker is best.
        Without a pool and with few sampled clients per worker, some nodes would get several clients
        and delay their worker. Then there are more nodes, so that most have at most one client.
        """
        one = device.startswith("cuda:")
        gpus = len(gpu_names()[: 1 if one else None]) if device != "cpu" else 0
        self.check_gpus(gpus, device)
        workers = self.workers or self._automatic_workers(gpus)
        workers = max(1, min(workers, num_clients))
        per_worker = 4
        if pool:
            per_worker = 1
        elif participation < 1 and participation * num_clients < 8 * workers:
            per_worker = 16
        nodes = self.nodes or min(num_clients, per_worker * workers)
        share = self.gpus if self.gpus >= 0 else min(1.0, gpus / workers)
        share = 0.0 if one else share
        return Resources(nodes, workers, share)

    def check_gpus(self, gpus: int, device: str) -> None:
        """Raise UserError if a share of a GPU is asked for where there is none.

        The workers of a Ray cluster may have GPUs that this machine has not.
        """
        asked = self.gpus > 0 and device != "cpu"
        if asked and not gpus and not os.environ.get("RAY_ADDRESS"):
            raise UserError(
                f"--gpus is {self.gpus:g}, but this machine has no GPU: leave it out to train on "
                "the CPU"
            )

    def _automatic_workers(self, gpus: int) -> int:
        """Return as many workers as fit this machine's GPUs, four on each by default, or cores."""
        if not gpus:
            return cores()
        return int(gpus / self.gpus) if self.gpus > 0 else 4 * gpus

    def resolve_for(self, values: Mapping[str, Any]) -> "Resources":
        """Set automatic values for a run configuration, whose nodes host any client if they can."""
        clients = int(values["num-clients"]) - int(values.get("new-clients", 0))
        share = float(values["participation"])
        return self.resolve(clients, share, bool(node_config(values)), str(values["device"]))

    def options(self) -> str:
        """Return Flower's `--federation-config` for these resources."""
        total = self.total_cpus()
        text = (
            f"num-supernodes={self.nodes} client-resources-num-cpus={self.cpus_per_worker()} "
            f"client-resources-num-gpus={float(self.gpus)}"
        )
        return f"{text} init-args-num-cpus={total}" if total else text

    def cpus_per_worker(self) -> int:
        """Return the number of CPUs per worker, an equal share."""
        return max(1, cores() // self.workers)

    def total_cpus(self) -> int:
        """Return the number of CPUs for Ray, which limits it to these workers.

        It is 0 with a Ray cluster (RAY_ADDRESS), whose own resources limit the workers.
        """
        if os.environ.get("RAY_ADDRESS"):
            return 0
        return min(max(cores(), self.workers), self.cpus_per_worker() * self.workers)


def default_engine() -> Engine:
    """Return worker processes, or Ray if there is a Ray cluster (RAY_ADDRESS)."""
    return Engine.RAY if os.environ.get("RAY_ADDRESS") else Engine.WORKERS


def node_config(run_config: Mapping[str, Any]) -> dict[str, str]:
    """Return the node-config of virtual nodes: they host any client, unless partition is own."""
    return {} if run_config["partition"] == "own" else {"hosts": "any"}


def check_in_process(resources: Resources, device: str) -> None:
    """Raise UserError if the engine that trains in one process lacks the workers or a GPU."""
    if resources.workers > 1:
        raise UserError(
            f"{resources.workers} workers are asked for, but the engine in-process trains in one "
            "process; leave their number out, or take another engine"
        )
    resources.check_gpus(len(gpu_names()) if resources.gpus > 0 else 0, device)


def check_simulated(num_clients: int, partition: str) -> None:
    """Raise UserError if all clients of a simulation would have the same images as their own."""
    if partition == "own" and num_clients > 1:
        raise UserError(
            "partition is 'own': every SuperNode has the images of its own data-dir, but in a "
            f"simulation all {num_clients} clients would have those of the run's; start SuperNodes "
            "(docs/deployment.md), or simulate them: partition='folders' has a folder per client"
        )
