"""What a simulation may use of its machine: nodes, workers and shares of GPUs."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from fedapp.core.hardware import cores, gpu_names


class Engine(StrEnum):
    """What a run's nodes are; the result is the same, bit for bit."""

    WORKERS = "workers"  # worker processes of the app's own: starts soonest
    RAY = "ray"  # Flower's virtual SuperNodes on Ray workers, of a cluster with RAY_ADDRESS
    IN_PROCESS = "in-process"  # plain calls in one process: least memory, many beside each other


@dataclass(frozen=True)
class Resources:
    """What a simulation may use; zeros mean: choose."""

    nodes: int = 0
    workers: int = 0
    gpus: float = -1.0  # per worker

    def resolve(
        self,
        num_clients: int,
        participation: float = 1.0,
        pool: bool = False,
        device: str = "auto",
    ) -> "Resources":
        """Fill in what was left open from the machine's cores, and its GPUs unless `device` is cpu.

        A worker sees the GPU that it shares, and for a device "cuda:N" it sees all of them.

        A node's clients are trained by one worker, in turn. Nodes of a `pool` can host any client,
        so the server shares a round's clients evenly, and one node per worker is best. Else, where
        few clients per worker are drawn, some nodes would get several of them and a worker would
        end up alone with those: more nodes then, so that mostly each has one.
        """
        gpus = len(gpu_names()) if device != "cpu" else 0
        workers = self.workers or (4 * gpus if gpus else cores())
        workers = max(1, min(workers, num_clients))
        few = participation < 1 and participation * num_clients < 8 * workers
        nodes = self.nodes or min(num_clients, (1 if pool else 16 if few else 4) * workers)
        share = self.gpus if self.gpus >= 0 else min(1.0, gpus / workers)
        share = 0.0 if device.startswith("cuda:") else share
        return Resources(nodes, workers, share)

    def options(self) -> str:
        """Return Flower's `--federation-config` for these resources."""
        total = self.total_cpus()
        text = (
            f"num-supernodes={self.nodes} client-resources-num-cpus={self.cpus_per_worker()} "
            f"client-resources-num-gpus={float(self.gpus)}"
        )
        return f"{text} init-args-num-cpus={total}" if total else text

    def cpus_per_worker(self) -> int:
        """Return the CPUs that each worker has for itself: an equal share."""
        return max(1, cores() // self.workers)

    def total_cpus(self) -> int:
        """Return the CPUs that Ray may give away, so that just these workers fit in.

        0 where a Ray cluster runs already (RAY_ADDRESS): it has resources of its own, and says how
        many workers fit in.
        """
        if os.environ.get("RAY_ADDRESS"):
            return 0
        return min(max(cores(), self.workers), self.cpus_per_worker() * self.workers)


def default_engine() -> Engine:
    """Return worker processes, or Ray where a Ray cluster runs (RAY_ADDRESS)."""
    return Engine.RAY if os.environ.get("RAY_ADDRESS") else Engine.WORKERS


def node_config(run_config: Mapping[str, Any]) -> dict[str, str]:
    """Return what virtual nodes are told: they can host any client, unless data are their own."""
    return {} if run_config["partition"] == "own" else {"hosts": "any"}
