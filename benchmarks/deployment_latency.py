"""Seconds per round with real SuperNodes: a bare Flower app, fedapp, and fedapp with warm workers.

Every case starts a new federation on this machine with TLS, keys and a database (as the tests do).
The bare app's clients add 1 to an array as large as fedapp's model, and its server is Flower's
FedAvg, so its rounds show the cost of Flower. Run it from the project's folder:

    python benchmarks/deployment_latency.py --nodes 2 --rounds 5
"""

import argparse
import json
import re
import statistics
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from deployment.federation import Federation, Program  # noqa: E402

from fedapp.engines.launch import program  # noqa: E402

BARE_PROJECT = """
[project]
name = "bare"
version = "0.1.0"
description = "What a round of Flower costs"
dependencies = []
[tool.flwr.app]
publisher = "bare"
[tool.flwr.app.components]
serverapp = "bare.server:app"
clientapp = "bare.client:app"
[tool.flwr.app.config]
rounds = 5
nodes = 2
numbers = 92000
"""
BARE_CLIENT = """
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message, context):
    arrays = [array + 1 for array in message.content["arrays"].to_numpy_ndarrays()]
    content = {"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"num-examples": 1})}
    return Message(RecordDict(content), reply_to=message)
"""
BARE_SERVER = """
import time
import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


@app.main()
def main(grid, context):
    config = context.run_config
    last = [time.monotonic()]

    def clock(server_round, arrays):
        now = time.monotonic()
        print(f"round {server_round} {now - last[0]:.2f} s", flush=True)
        last[0] = now

    strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=config["nodes"])
    start = ArrayRecord([np.zeros(config["numbers"], np.float64)])
    strategy.start(grid, start, num_rounds=config["rounds"], evaluate_fn=clock)
"""


def bare_app(folder: Path) -> Path:
    """Write the bare app; returns its folder."""
    (folder / "bare").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(BARE_PROJECT)
    (folder / "bare" / "__init__.py").write_text('"""Bare."""\n')
    (folder / "bare" / "client.py").write_text(BARE_CLIENT)
    (folder / "bare" / "server.py").write_text(BARE_SERVER)
    return folder


def bare_rounds(federation: Federation, nodes: int, rounds: int) -> list[float]:
    """Return the seconds of each round of the bare app."""
    app = bare_app(federation.folder / "app")
    command = [program("flwr"), "run", str(app), "tls", "--stream", "-c"]
    command.append(f"rounds={rounds} nodes={nodes}")
    run = Program(command, federation.user, federation.folder / "bare.log")
    try:
        run.process.wait(600)
    finally:
        run.stop()
    return [float(found) for found in re.findall(r"round [1-9]\d* ([\d.]+) s", run.text())]


def our_rounds(federation: Federation, nodes: int, rounds: int) -> list[float]:
    """Return the seconds of each round of fedapp, local training and evaluation included."""
    keys = {"num_clients": nodes, "shards": 10, "partition": "iid", "num_rounds": rounds}
    log = federation.run("ours", **keys)
    rows = federation.rows("ours")
    assert len(rows) == rounds, log
    return [row["seconds"] for row in rows]


def measure(case: str, nodes: int, rounds: int, poll: str) -> list[float]:
    """Start a federation, run one case and stop the federation."""
    with tempfile.TemporaryDirectory(prefix="latency-", ignore_cleanup_errors=True) as name:
        federation = Federation(Path(name), nodes, poll)
        try:
            federation.start_superlink()
            federation.register(*range(nodes))
            for node in range(nodes):
                federation.start_node(node, nodes, 'worker="warm"' if case == "warm" else "")
            run = bare_rounds if case == "bare" else our_rounds
            return run(federation, nodes, rounds)
        finally:
            federation.stop()


def main() -> None:
    """Measure the cases that the command line names and print one JSON line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--poll", default="1.0", help="FLWR_SUPEREXEC_TASK_POLL_INTERVAL")
    parser.add_argument("--cases", nargs="+", default=["bare", "plain", "warm"])
    chosen = parser.parse_args()
    for case in chosen.cases:
        seconds = measure(case, chosen.nodes, chosen.rounds, chosen.poll)
        median = statistics.median(seconds[1:])
        found = {"case": case, "nodes": chosen.nodes, "poll": chosen.poll, "median": median}
        print(json.dumps(found | {"seconds": [round(s, 2) for s in seconds]}), flush=True)


if __name__ == "__main__":
    main()
