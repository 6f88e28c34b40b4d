"""The costs of the engine: start-up, messages with models, and aggregation.

Start-up is compared with the start of Ray plus the import of PyTorch, messages with stock Flower's,
and aggregation with copying memory. Messages and aggregation need no training.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import tomli_w

from fedapp.core.errors import UserError
from fedapp.core.hardware import cores
from fedapp.engines.launch import environment_for, run
from fedapp.engines.resources import Engine, Resources
from fedapp.experiments.bench import messages
from fedapp.experiments.bench.federated import measured_workload, resources
from fedapp.experiments.bench.machine import best_seconds, memory_bandwidth
from fedapp.experiments.bench.plan import Plan, Workload
from fedapp.experiments.bench.superlink import flower_run, local_superlink, run_with_superlink
from fedapp.experiments.bench.tax import rounded_median, say
from fedapp.experiments.jobs import Runner, stdout_to_stderr
from strategies.aggregate import ExactSum

# Flower finds apps by assignments in the text of the module.
_APP = f"""\"\"\"The messages to measure, as an app.\"\"\"

import {messages.__name__} as messages

client = messages.client
server = messages.server
"""
_BASELINE = {
    "ray.init": "import ray; start = time.perf_counter(); ray.init(num_cpus={cores}, "
    "include_dashboard=False, log_to_driver=False)",
    "import torch": "start = time.perf_counter(); import torch",
}
_AGGREGATED_MEGABYTES = 40


def measure_engine(project: Path, plan: Plan) -> dict[str, Any]:
    """Return "startup", "messages" and "aggregation" (see the `measure_...` functions)."""
    return {
        "startup": measure_startup(project, plan.repeats),
        "messages": measure_messages(plan),
        "aggregation": measure_aggregation(),
    }


def measure_startup(project: Path, repeats: int) -> dict[str, float]:
    """Measure the seconds from the command to the end of round 1, with one batch per client.

    Returns:
        Medians over the repeats: "seconds" of `fedapp run`, "baseline_seconds" (of `ray.init` plus
        `import torch`), their "ratio", and "ray_seconds" and "superlink_seconds" of the other
        engines.
    """
    workload = Workload(clients=cores(), images=50, epochs=1, rounds=1)
    runners: dict[str, Runner] = {
        "seconds": partial(run, engine=Engine.WORKERS),
        "ray_seconds": partial(run, engine=Engine.RAY),
        "superlink_seconds": run_with_superlink,
    }
    measured: dict[str, list[float]] = {}
    for repeat in range(repeats):
        say(f"start-up, repeat {repeat + 1} of {repeats}")
        baseline = sum(_baseline_seconds(text) for text in _BASELINE.values())
        seconds = {
            name: measured_workload(
                project,
                workload,
                resources("cpu"),
                runner,
                method="fedavg",
                model="cnn",
                device="cpu",
            ).first_round
            for name, runner in runners.items()
        } | {"baseline_seconds": baseline}
        for name, value in (seconds | {"ratio": seconds["seconds"] / baseline}).items():
            measured.setdefault(name, []).append(value)
    return {name: rounded_median(values) for name, values in measured.items()}


def measure_messages(plan: Plan) -> dict[str, dict[str, float]]:
    """Measure rounds in which clients return the received model, for this project and Flower.

    Returns:
        By megabytes of the model: "seconds" per round, "seconds_per_client", "stock_seconds" (one
        message per client, as in Flower's examples) and the "ratio" of "seconds" to
        "stock_seconds". The smallest model shows the cost of waiting and polling.
    """
    ours: dict[str, list[float]] = {}
    stock: dict[str, list[float]] = {}
    nodes = cores()  # as in `fedapp run`
    for repeat in range(plan.repeats):
        say(f"messages, repeat {repeat + 1} of {plan.repeats}")
        _gather(ours, run_messages(plan, nodes, stock=False))
        say(f"messages of stock Flower, repeat {repeat + 1} of {plan.repeats}")
        _gather(stock, run_messages(plan, plan.message_clients, stock=True))
    return {size: _compare(ours[size], stock[size], plan.message_clients) for size in ours}


def run_messages(plan: Plan, nodes: int, stock: bool) -> dict[str, list[float]]:
    """Run the message app once; return the seconds of its rounds, except the first, by megabytes.

    Raises:
        UserError: the run did not complete.
    """
    with tempfile.TemporaryDirectory(prefix="fedapp-bench-", ignore_cleanup_errors=True) as folder:
        results = Path(folder) / "results.json"
        values = {
            "megabytes": " ".join(str(size) for size in plan.megabytes),
            "rounds": plan.message_rounds, "clients": plan.message_clients, "nodes": nodes,
            "stock": stock, "results": str(results),
        }  # fmt: skip
        project = write_message_app(Path(folder) / "app", values)
        home = Path(folder) / "home"
        home.mkdir()
        settings = Path(folder) / "run.toml"
        settings.write_text(tomli_w.dumps(values))
        environment = environment_for(home)
        with local_superlink(home, environment) as wait_until_ready, stdout_to_stderr():
            wait_until_ready()
            flower_run(project, settings, Resources(nodes, cores(), 0.0), environment)
        if not results.is_file():
            raise UserError("the run of the message app did not complete, see its log")
        measured: dict[str, list[float]] = json.loads(results.read_text())
    return {size: seconds[1:] for size, seconds in measured.items()}


def write_message_app(folder: Path, config: Mapping[str, Any]) -> Path:
    """Write a project for `flwr run` with these run-config keys; return its folder."""
    folder.mkdir(parents=True)
    (folder / "message_app.py").write_text(_APP)
    project = {
        "project": {"name": "messages", "version": "1.0.0", "license": "Apache-2.0",
                    "dependencies": []},
        "tool": {"flwr": {"app": {
            "publisher": "fedapp",
            "components": {"serverapp": "message_app:server", "clientapp": "message_app:client"},
            "config": dict(config),
        }}},
    }  # fmt: skip
    (folder / "pyproject.toml").write_text(tomli_w.dumps(project))
    return folder


def measure_aggregation() -> dict[str, float]:
    """Measure the server's exact sum of a 40 MB model, with one thread.

    Returns:
        GB of float32 model per second of "add" (one client's model), GB of int64 sums per second of
        "merge" (a node's partial sum), and of the result per second of "mean"; "copy" is the GB/s,
        read and written, of a plain copy; and "add_traffic_ratio": the least memory traffic of
        "add" (20 bytes per parameter) per second over "copy".
    """
    say("aggregation")
    model = messages.random_model(_AGGREGATED_MEGABYTES)
    total, partial = ExactSum(model, 5000), ExactSum(model, 5000)
    partial.add(model, 1)
    parameters = sum(array.size for array in model.values())

    def merge_once() -> None:
        total.check_partial(partial.sums, 1)
        total.merge_checked(partial.sums, 1)

    add = best_seconds(lambda: total.add(model, 1), 5)
    merge = best_seconds(merge_once, 5)
    copy = memory_bandwidth()
    return {
        "add": 4 * parameters / add / 1e9,
        "merge": 8 * parameters / merge / 1e9,
        "mean": 4 * parameters / best_seconds(total.mean, 5) / 1e9,
        "copy": copy,
        "add_traffic_ratio": 20 * parameters / add / 1e9 / copy,
    }


def _baseline_seconds(statements: str) -> float:
    """Return the seconds of some statements in a new process."""
    script = f"import time; {statements.format(cores=cores())}; print(time.perf_counter() - start)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"'{statements}' failed: {done.stderr.strip().splitlines()[-1]}")
    return float(done.stdout.split()[-1])


def _compare(ours: Sequence[float], stock: Sequence[float], clients: int) -> dict[str, float]:
    return {
        "seconds": rounded_median(ours),
        "seconds_per_client": rounded_median(ours) / clients,
        "stock_seconds": rounded_median(stock),
        "ratio": rounded_median([own / other for own, other in zip(ours, stock, strict=True)]),
    }


def _gather(collected: dict[str, list[float]], measured: Mapping[str, Sequence[float]]) -> None:
    for size, seconds in measured.items():
        collected.setdefault(size, []).append(statistics.median(seconds))
