"""A run on Ray: Flower's Simulation Runtime without a SuperLink."""

import logging
from concurrent.futures import Future
from typing import Any

from fedapp.engines.apps import ConfiguredClientApp, ConfiguredServerApp
from fedapp.engines.resources import Resources
from fedapp.engines.shutdown import interrupted
from fedapp.engines.subprocesses import install_signal_handlers


def run_on_ray(
    server: ConfiguredServerApp, clientapp: str, resources: Resources, checking: "Future[None]"
) -> None:
    """Start Ray, or join the cluster at RAY_ADDRESS, and run the apps on virtual SuperNodes."""
    if cpus := resources.total_cpus():
        import ray  # takes seconds

        ray.init(
            num_cpus=cpus,
            include_dashboard=False,
            logging_level=logging.WARNING,
            log_to_driver=True,
        )
        install_signal_handlers(interrupted)  # replaces Ray's handler of SIGTERM
    checking.result()
    from flwr.simulation import run_simulation  # imports Ray

    per_worker: dict[str, Any] = {
        "num_cpus": resources.cpus_per_worker(),
        "num_gpus": float(resources.gpus),
    }
    # run_simulation is deprecated in favour of `flwr run`, which has the same Simulation Runtime.
    logging.getLogger("flwr").addFilter(lambda record: "DEPRECATED" not in record.getMessage())
    app = ConfiguredClientApp(clientapp, server.run_config)
    run_simulation(
        server.app(), app, resources.nodes,  # type: ignore[arg-type]
        backend_config={"client_resources": per_worker},
    )  # fmt: skip
