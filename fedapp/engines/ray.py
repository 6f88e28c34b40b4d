"""A run on Ray: Flower's Simulation Runtime without a SuperLink."""

import logging
import time
from concurrent.futures import Future
from functools import partial
from typing import Any

from fedapp.core.errors import UserError
from fedapp.engines.apps import ConfiguredClientApp, ConfiguredServerApp
from fedapp.engines.resources import Resources
from fedapp.engines.shutdown import interrupted
from fedapp.engines.subprocesses import install_signal_handlers
from strategies.rounds.interruption import ask_to_stop

_PATIENCE = 30.0  # seconds for the server to save an interrupted run


def run_on_ray(
    server: ConfiguredServerApp, clientapp: str, resources: Resources, checking: "Future[Any]"
) -> None:
    """Start Ray, or join the cluster at RAY_ADDRESS, and run the apps on virtual SuperNodes."""
    if cpus := resources.total_cpus():
        _start_ray(cpus)
    install_signal_handlers(partial(_interrupt, server))  # replaces Ray's handler of SIGTERM
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


def _interrupt(server: ConfiguredServerApp) -> None:
    """Let the server, in a thread of Flower's, save the run; then end. A second signal ends now."""
    if ask_to_stop():
        latest = time.monotonic() + _PATIENCE
        while server.running and time.monotonic() < latest:
            time.sleep(0.05)
    interrupted()


def _start_ray(cpus: int) -> None:
    """Start Ray on this machine; raises UserError if it does not come up in time."""
    import ray  # takes seconds

    try:
        ray.init(
            num_cpus=cpus,
            include_dashboard=False,
            logging_level=logging.WARNING,
            log_to_driver=True,
        )
    except Exception as error:  # it raises plain Exception and RuntimeError after its time limits
        reason = str(error).strip().partition("\n")[0]
        raise UserError(
            f"Ray did not start: {reason}; try again when the machine is less busy, or run without "
            "Ray: fedapp run --engine workers"
        ) from error
