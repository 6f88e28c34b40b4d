"""A simulation on a Ray cluster that runs already: two Ray nodes, here both on this machine."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from in_process import assert_same, federate, settings
from safetensors.numpy import load_file

from fedapp.engines.launch import program
from fedapp.experiments.bench.superlink import free_port

ROOT = Path(__file__).parents[2]
WORKERS = """
import json, ray
from ray._private.state import actors
ray.init(logging_level="ERROR")
nodes = [a["Address"]["NodeID"] for a in actors().values() if "ClientApp" in a["ActorClassName"]]
print("NODES", json.dumps(nodes))
"""


NODES = """
import time, ray
ray.init(logging_level="ERROR")
while len(ray.nodes()) < 2:
    time.sleep(0.2)
"""


@pytest.fixture
def cluster():
    """Start two Ray nodes with one core each; yields the environment that names the cluster."""
    port = free_port()
    address = f"127.0.0.1:{port}"
    environment = {**os.environ, "RAY_ADDRESS": address, "RAY_USAGE_STATS_ENABLED": "0"}
    start = [program("ray"), "start", "--block", "--num-cpus", "1", "--num-gpus", "0"]

    def node(*options: str) -> "subprocess.Popen[bytes]":
        command = [*start, *options]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)

    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        head = ["--head", "--port", str(port), "--temp-dir", folder, "--include-dashboard", "false"]
        nodes = [node(*head)]
        try:
            wait_for_port(port)
            nodes.append(node("--address", address))
            subprocess.run([sys.executable, "-c", NODES], env=environment, timeout=120, check=True)
            yield environment
        finally:
            for started in reversed(nodes):
                started.terminate()
                stop(started)


def stop(node: "subprocess.Popen[bytes]") -> None:
    """Wait for a Ray node to end; after half a minute end it and what it started."""
    try:
        node.wait(30)
    except subprocess.TimeoutExpired:
        os.killpg(node.pid, signal.SIGKILL)
        node.wait()


def wait_for_port(port: int) -> None:
    """Wait until something listens on a local port; TimeoutError after two minutes."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise TimeoutError(f"nothing listens on port {port}")


def test_two_ray_nodes_train_the_model_of_one_process(cluster, tmp_path):
    quick = {"num-rounds": 2, "num-clients": 10, "participation": 0.5, "local-epochs": 1}
    values = " ".join(f"{key}={value}" for key, value in quick.items())
    done = subprocess.run(
        [
            program("fedapp"), "run", "--app", str(ROOT), "--workers", "2",
            "--nodes", "4", "-c", f"{values} run-name='ray' output-dir='{tmp_path}'",
        ],
        env=cluster, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    final = federate(settings(batch_size="auto"))[0]
    whole = load_file(tmp_path / "ray" / "model.safetensors")
    assert_same(final, {name: whole[name] for name in final})
    asked = subprocess.run(
        [sys.executable, "-c", WORKERS], env=cluster, capture_output=True, text=True, check=True
    )
    nodes = json.loads(asked.stdout.split("NODES")[1])
    assert len(nodes) == len(set(nodes)) == 2  # one worker on each
