"""A package of its own adds a method, a data set, a backbone and a callback, and nothing is edited.

The example is installed into a folder and trained with in a simulation and on two real SuperNodes.
"""

import json
import os
import shutil
import subprocess

import numpy as np
import pytest
from safetensors.numpy import load_file

from deployment.federation import ROOT
from fedapp.engines.launch import program

RUN = {
    "method": "fedmargin", "dataset": "stripes", "model": "mlp", "num_clients": 2, "shards": 2,
    "participation": 1.0, "num_rounds": 1, "local_epochs": 1, "lr": 0.5, "threads": 1,
    "callbacks": "update-size",
}  # fmt: skip


def fedapp(*arguments: str) -> str:
    done = subprocess.run(
        [program("fedapp"), *arguments], capture_output=True, text=True, cwd=ROOT, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_an_own_method_trains_in_a_simulation_and_on_real_nodes(
    own_method, federation, tmp_path, monkeypatch
):
    monkeypatch.setenv("PYTHONPATH", str(own_method))
    listed = {row["method"]: row for row in json.loads(fedapp("methods", "--json"))}
    assert listed["fedmargin"]["client"] == "BoundedClient"
    keys = {row["key"]: row for row in json.loads(fedapp("config", "--json"))}
    assert keys["fedmargin-step"]["value"] == 1.0

    pairs = [f"{k.replace('_', '-')}={v!r}" for k, v in RUN.items()]
    simulated = f"fedmargin-step=0.8 output-dir='{tmp_path / 'simulated'}' run-name='one'"
    fedapp("run", "--workers", "2", "-c", " ".join(pairs), "-c", simulated)

    log = federation.run("real", **RUN, extension_keys="fedmargin-step=0.8")
    assert federation.status() == "finished:completed", log

    own = load_file(tmp_path / "simulated" / "one" / "model.safetensors")
    real = load_file(federation.directory("real") / "model.safetensors")
    assert own.keys() == real.keys()
    assert all(np.array_equal(own[name], real[name]) for name in own)
    for row in federation.rows("real"):
        assert row["server_step"] == pytest.approx(0.8)
        assert row["update_size"] > 0


@pytest.mark.parametrize(
    ("file", "before", "after", "warning"),
    [
        ("data.py", "", "import no_such_library\n", "cannot be imported: ModuleNotFoundError"),
        ("method.py", '"fedmargin-radius"}', '"no-key"}', "key 'no-key'"),
    ],
)
def test_a_package_with_a_mistake_is_left_out_with_its_reason(
    own_method, tmp_path, file, before, after, warning
):
    shutil.copytree(own_method, tmp_path / "site")
    path = tmp_path / "site" / "own_method" / file
    path.write_text(path.read_text().replace(before, after, 1))
    done = subprocess.run(
        [program("fedapp"), "methods", "--json"],
        capture_output=True, text=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site"), "COLUMNS": "200"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "(own_method." in done.stderr
    assert warning in done.stderr
    listed = [row["method"] for row in json.loads(done.stdout)]
    assert ("fedmargin" in listed) == (file == "data.py")
