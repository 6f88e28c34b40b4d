"""One simulation, in a process of its own: what `fedapp run` starts.

The workers start while PyTorch is imported and the configuration is checked. They are processes of
the app's own (`worker_processes.py`), or Ray's: then Flower's Simulation Runtime is the same as
behind `flwr run`, without the SuperLink and the commands around it, which only hand the app over.
"""

import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pkgutil import resolve_name
from typing import Any

from fedapp.errors import UserError
from fedapp.launch import Engine, Resources, node_config
from fedapp.subprocesses import COMPLETED, FAILED, INTERRUPTED, MISTAKE, heed_signals, take_task
from fedapp.worker_template import kill_workers, start_template

_stopping = threading.Lock()


class ConfiguredApp:
    """A ClientApp, by name, whose messages come with a run configuration."""

    def __init__(self, reference: str, run_config: Mapping[str, Any]) -> None:
        """Take the app's name, as module:name: Ray's workers import it themselves."""
        self.reference = reference
        self.run_config = dict(run_config)

    def __call__(self, message: Any, context: Any) -> Any:
        """Let the app answer a message; its node's state is kept in `context`."""
        from flwr.app import Context

        place = {**context.node_config, **node_config(self.run_config)}
        own = Context(
            run_id=context.run_id, node_id=context.node_id, node_config=place,
            state=context.state, run_config=dict(self.run_config),
        )  # fmt: skip
        reply = resolve_name(self.reference)(message, own)
        context.state = own.state
        return reply


def simulate(
    values: Mapping[str, Any], resources: Resources, engine: Engine, serverapp: str, clientapp: str
) -> int:
    """Check the configuration while the workers start, and run the apps; returns an exit code."""
    on_ray = engine == Engine.RAY
    if not on_ray:
        start_template(values)
    checking = ThreadPoolExecutor(1).submit(_check, values, on_ray)
    try:
        clients, share = int(values["num-clients"]), float(values["participation"])
        device, pool = str(values["device"]), bool(node_config(values))
        resources = resources.resolve(clients, share, pool, device)
    except (KeyError, OverflowError, TypeError, ValueError):
        checking.result()  # says so and ends
        raise
    server = Server(serverapp, values)
    (_run_on_ray if on_ray else _run_on_workers)(server, clientapp, resources, checking)
    return COMPLETED if server.completed else FAILED


def _run_on_workers(
    server: "Server", clientapp: str, resources: Resources, checking: "Future[None]"
) -> None:
    """Run the apps on worker processes of our own."""
    from flwr.app import Context, RecordDict

    from fedapp.worker_processes import WorkerGrid

    grid = WorkerGrid(server.run_config, resources, clientapp)
    checking.result()
    heed_signals()  # the server notes that it was stopped
    server.main(grid, Context(1, 1, {}, RecordDict(), {}))


def _run_on_ray(
    server: "Server", clientapp: str, resources: Resources, checking: "Future[None]"
) -> None:
    """Start Ray, or with RAY_ADDRESS join its cluster, and run the apps on virtual SuperNodes."""
    if cpus := resources.total_cpus():
        import ray

        ray.init(
            num_cpus=cpus,
            include_dashboard=False,
            logging_level=logging.WARNING,
            log_to_driver=True,
        )
        heed_signals(_interrupted)  # Ray has an answer of its own to SIGTERM
    checking.result()
    from flwr.simulation import run_simulation

    per_worker: dict[str, Any] = {
        "num_cpus": resources.cpus_per_worker(),
        "num_gpus": float(resources.gpus),
    }
    # It is deprecated in favour of `flwr run`, whose Simulation Runtime it shares.
    logging.getLogger("flwr").addFilter(lambda record: "DEPRECATED" not in record.getMessage())
    app = ConfiguredApp(clientapp, server.run_config)
    run_simulation(
        server.app(), app, resources.nodes,  # type: ignore[arg-type]
        backend_config={"client_resources": per_worker},
    )  # fmt: skip


class Server:
    """A ServerApp, by name, with a run configuration; notes whether it came to its end."""

    def __init__(self, reference: str, run_config: Mapping[str, Any]) -> None:
        """Take the app's name, as module:name."""
        self.reference = reference
        self.run_config = dict(run_config)
        self.completed = False

    def app(self) -> Any:
        """Return the ServerApp that Flower is to run."""
        from flwr.serverapp import ServerApp

        app = ServerApp()
        app.main()(self.main)
        return app

    def main(self, grid: Any, context: Any) -> None:
        """Run the named app; a user's mistake becomes one sentence."""
        context.run_config = self.run_config
        try:
            resolve_name(self.reference)(grid, context)
        except UserError as mistake:
            print(mistake, flush=True)
        else:
            self.completed = True


def _check(values: Mapping[str, Any], on_ray: bool) -> None:
    """Check a configuration while workers start; a mistake ends this process at once."""
    from fedapp.config import RunConfig  # imports torch

    try:
        config = RunConfig.parse(values)
    except UserError as mistake:
        print(f"fedapp: {mistake}", file=sys.stderr, flush=True)
        _leave(MISTAKE)
    if on_ray:
        import flwr.simulation  # noqa: F401  (now, while Ray starts)
    import fedapp.server_app  # noqa: F401
    from fedapp.models import import_networks

    import_networks(config)


def _interrupted() -> None:
    _stop(INTERRUPTED)


def _stop(code: int) -> None:
    """End this process in the middle of its work, and Ray's processes before it."""
    if not _stopping.acquire(blocking=False):
        return  # that is being done
    if "ray" in sys.modules:
        with suppress(Exception):  # it may be starting just now
            sys.modules["ray"].shutdown()
    _leave(code)


def _leave(code: int) -> None:
    """End this process at once, with our own workers."""
    with suppress(Exception):  # they may be starting just now
        kill_workers()
    os._exit(code)


def main() -> None:
    """Read the task, one line of JSON, from standard input, and do it."""
    heed_signals(_interrupted)
    task = take_task(lambda: _stop(FAILED))
    try:
        code = simulate(
            task["values"], Resources(**task["resources"]), task["engine"],
            task["serverapp"], task["clientapp"],
        )  # fmt: skip
    except KeyboardInterrupt:
        code = INTERRUPTED
    except Exception:
        traceback.print_exc()
        code = FAILED
    sys.stdout.flush()
    sys.stderr.flush()
    if not _stopping.acquire(blocking=False):
        time.sleep(60)  # it failed because it is being stopped, which ends it
    _leave(code)  # a server that waits for lost workers must not keep the process


if __name__ == "__main__":
    main()
