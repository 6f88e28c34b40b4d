"""One simulation in a process of its own, which `fedapp run` starts.

The workers are the app's own processes (`workers.py`) or Ray's. With Ray this uses the same
Simulation Runtime as `flwr run`, without the SuperLink and the commands that only deliver the app.
"""

import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from fedapp.core.errors import UserError
from fedapp.core.progress import show_progress
from fedapp.engines.apps import ConfiguredServerApp
from fedapp.engines.ray import run_on_ray
from fedapp.engines.resources import Engine, Resources, check_simulated
from fedapp.engines.shutdown import finish, interrupted, leave, stop
from fedapp.engines.subprocesses import (
    COMPLETED,
    FAILED,
    INTERRUPTED,
    MISTAKE,
    install_signal_handlers,
    take_task,
    watch_parent,
)
from fedapp.engines.worker_template import fork_template

if TYPE_CHECKING:
    from fedapp.config.run_config import RunConfig


def simulate(
    values: Mapping[str, Any],
    resources: Resources,
    engine: Engine,
    serverapp: str,
    clientapp: str,
    typed: Sequence[str] = (),
) -> int:
    """Check the configuration, start the workers and run the apps; return the exit code.

    Of the keys in `typed`, it prints those without effect.
    """
    server = ConfiguredServerApp(serverapp, values)
    run = _simulate_on_ray if engine == Engine.RAY else _simulate_on_workers
    run(server, clientapp, resources, typed)
    return COMPLETED if server.completed else FAILED


def _simulate_on_workers(
    server: ConfiguredServerApp, clientapp: str, resources: Resources, typed: Sequence[str]
) -> None:
    """Run on the app's worker processes, forked from this one before it has threads."""
    config = _check(server.run_config, typed)
    import fedapp.runtime.node.messages  # noqa: F401  (what the workers need; imports PyTorch)
    from fedapp.engines.workers import run_on_workers  # imports Flower

    fork_template(os.getcwd())  # the run's temporary folder
    watch_parent(_parent_ended)
    run_on_workers(server, clientapp, resources.resolve_for(config.flat()))


def _simulate_on_ray(
    server: ConfiguredServerApp, clientapp: str, resources: Resources, typed: Sequence[str]
) -> None:
    """Run on Ray, which starts while another thread checks the configuration."""
    watch_parent(_parent_ended)
    checking = ThreadPoolExecutor(1).submit(_check, server.run_config, typed, on_ray=True)
    try:
        resources = resources.resolve_for(server.run_config)
    except (KeyError, OverflowError, TypeError, ValueError):
        checking.result()  # reports the mistake and ends the process
        raise
    run_on_ray(server, clientapp, resources, checking)


def _check(values: Mapping[str, Any], typed: Sequence[str], on_ray: bool = False) -> "RunConfig":
    """Parse a configuration and import what it needs; a mistake ends the process at once."""
    from fedapp.config.effect import without_effect  # imports PyTorch
    from fedapp.config.resolve import parse_config  # imports PyTorch

    try:
        config = parse_config(values)
        check_simulated(config.num_clients, config.partition)
    except UserError as error:
        print(f"fedapp: {error}", file=sys.stderr, flush=True)
        leave(MISTAKE)
    if note := without_effect(typed, config):
        print(note, flush=True)
    if on_ray:
        import flwr.simulation  # noqa: F401  (imports Ray while Ray starts)
    import fedapp.server_app  # noqa: F401  (imports PyTorch)
    from fedapp.models.model import import_networks  # imports PyTorch

    import_networks(config.model, config.model_group)
    return config


def _parent_ended() -> None:
    stop(FAILED)


def main() -> None:
    """Read the task, one line of JSON, from standard input, and run it."""
    install_signal_handlers(interrupted)
    show_progress()
    task = take_task()
    try:
        code = simulate(
            task["values"], Resources(**task["resources"]), task["engine"],
            task["serverapp"], task["clientapp"], task["typed"],
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
    finish(code)  # also if a server still waits for lost workers


if __name__ == "__main__":
    main()
