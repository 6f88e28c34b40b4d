"""One SuperLink for all simulations of a test session, on a free port, with its own FLWR_HOME."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from safetensors.numpy import load_file

from fedapp.engines.launch import environment_for, program
from fedapp.engines.resources import Resources
from fedapp.experiments.bench.superlink import local_superlink

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Outcome:
    """What a simulation left behind."""

    status: str
    log: str
    directory: Path

    def model(self) -> dict[str, Any]:
        return load_file(self.directory / "model.safetensors")

    def rounds(self) -> list[dict[str, Any]]:
        return [
            json.loads(line) for line in (self.directory / "metrics.jsonl").read_text().splitlines()
        ]

    def summary(self) -> dict[str, Any]:
        return json.loads((self.directory / "summary.json").read_text())


@pytest.fixture(scope="package")
def simulate(tmp_path_factory):
    """Return a function that runs `flwr run . --stream` and waits for its end."""
    home = tmp_path_factory.mktemp("flwr-home")
    environment = environment_for(home)

    def run(name: str, nodes: int = 3, workers: int = 2, **changes: Any) -> Outcome:
        output = tmp_path_factory.mktemp("runs")
        values = {"output-dir": str(output), "run-name": name, "num-rounds": 2, "num-clients": 10}
        values |= {"participation": 0.5, "local-epochs": 1}
        values |= {key.replace("_", "-"): value for key, value in changes.items()}
        preset = output / "preset.toml"
        preset.write_text(tomli_w.dumps(values))
        command = [program("flwr"), "run", str(ROOT), "local", "-c", str(preset), "--stream"]
        command += ["--federation-config", Resources(nodes, workers, 0.0).options()]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        listed = subprocess.run(
            [program("flwr"), "ls", "local", "--format", "json"],
            env=environment, capture_output=True, text=True, check=True,
        )  # fmt: skip
        status = json.loads(listed.stdout)["runs"][0]["status"]
        return Outcome(
            status, done.stdout + done.stderr, Path(values["output-dir"]) / values["run-name"]
        )

    with local_superlink(home, environment) as wait_until_ready:
        wait_until_ready()
        yield run
