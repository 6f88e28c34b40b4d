"""A checkpoint that lacks a part of the model or of the server's state is refused by name."""

import pytest
from in_process import ROOT, settings
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from fedapp.engines.in_process import run_in_process
from fedapp.engines.resources import Resources
from fedapp.results.checkpoint import newest
from fedapp.results.run_directory import RunDirectory


@pytest.mark.parametrize(
    ("part", "message"),
    [("head.bias", "does not contain the model of this run"), ("accepted", "lacks 'accepted-")],
)
def test_a_resume_from_it_changes_nothing(part, message, tmp_path, capsys):
    keys = settings(method="fedavg", num_clients=5, output_dir=str(tmp_path), run_name="one")
    assert run_in_process(ROOT, {**keys, "num-rounds": 1, "checkpoint-every": 1}, Resources()) == 0
    run = RunDirectory.load(tmp_path / "one")
    path = newest(run.path)
    with safe_open(path, "np") as file:
        metadata = file.metadata()
    kept = {name: array for name, array in load_file(path).items() if part not in name}
    save_file(kept, path, metadata)
    before = run.summary()
    again = {**keys, "num-rounds": 2, "checkpoint-every": 1, "resume": "auto"}
    assert run_in_process(ROOT, again, Resources()) == 1
    assert message in "".join(capsys.readouterr())
    assert run.summary() == before
