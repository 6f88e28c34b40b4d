"""One simulation in a process of its own, which `fedapp run` starts.

The workers start while this process imports PyTorch and checks the configuration. They are the
app's own processes (`workers.py`) or Ray's. With Ray this uses the same Simulation Runtime as `flwr
run`, without the SuperLink and the commands that only deliver the app.
"""

import sys
import time
import traceback
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fedapp.core.errors import UserError
from fedapp.core.progress import show_progress
from fedapp.engines.apps import ConfiguredServerApp
from fedapp.engines.ray import run_on_ray
from fedapp.engines.resources import Engine, Resources, node_config
from fedapp.engines.shutdown import interrupted, leave, stop, stopping
from fedapp.engines.subprocesses import (
    COMPLETED,
    FAILED,
    INTERRUPTED,
    MISTAKE,
    install_signal_handlers,
    take_task,
)
from fedapp.engines.worker_template import start_template


def simulate(
    values: Mapping[str, Any], resources: Resources, engine: Engine, serverapp: str, clientapp: str
) -> int:
    """Check the configuration while the workers start, and run the apps; return the exit code."""
    on_ray = engine == Engine.RAY
    if not on_ray:
        start_template(values)
    checking = ThreadPoolExecutor(1).submit(_check, values, on_ray)
    try:
        clients, share = int(values["num-clients"]), float(values["participation"])
        device, pool = str(values["device"]), bool(node_config(values))
        resources = resources.resolve(clients, share, pool, device)
    except (KeyError, OverflowError, TypeError, ValueError):
        checking.result()  # reports the mistake and ends the process
        raise
    server = ConfiguredServerApp(serverapp, values)
    if on_ray:
        run_on_ray(server, clientapp, resources, checking)
    else:
        from fedapp.engines.workers import run_on_workers  # imports Flower and NumPy

        run_on_workers(server, clientapp, resources, checking)
    return COMPLETED if server.completed else FAILED


def _check(values: Mapping[str, Any], on_ray: bool) -> None:
    """Check a configuration while workers start; a mistake ends the process at once."""
    from fedapp.config.resolve import parse_config  # imports PyTorch

    try:
        config = parse_config(values)
    except UserError as error:
        print(f"fedapp: {error}", file=sys.stderr, flush=True)
        leave(MISTAKE)
    if on_ray:
        import flwr.simulation  # noqa: F401  (imports Ray while Ray starts)
    import fedapp.server_app  # noqa: F401  (imports PyTorch)
    from fedapp.models.model import import_networks  # imports PyTorch

    import_networks(config.model, config.model_group)


def main() -> None:
    """Read the task, one line of JSON, from standard input, and run it."""
    install_signal_handlers(interrupted)
    show_progress()
    task = take_task(lambda: stop(FAILED))
    try:
        code = simulate(
            task["values"], Resources(**task["resources"]), task["engine"],
            task["serverapp"], task["clientapp"],
        )  # fmt: skip
    except KeyboardInterrupt:
        code = INTERRUPTED
    except UserError as mistake:
        print(f"fedapp: {mistake}", file=sys.stderr)
        code = FAILED
    except Exception:
        traceback.print_exc()
        code = FAILED
    sys.stdout.flush()
    sys.stderr.flush()
    if not stopping.acquire(blocking=False):
        time.sleep(60)  # another thread is stopping this process
    leave(code)  # also if a server still waits for lost workers


if __name__ == "__main__":
    main()
