"""Measures of methods whose clients keep something: local models are those of the run all the same.

Every training of the run is noted, and compared with the training that measures it, bit for bit;
the states themselves must stay as they are.
"""

import hashlib
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from in_process import settings

from clients.base import LocalClient
from fedapp import server_app
from fedapp.analysis.saved_runs import SavedRun
from fedapp.core.errors import UserError
from fedapp.engines.in_process import InProcessGrid
from fedapp.results import measures_file as store
from fedapp.results.final_model import read_model
from fedapp.results.run_directory import RunDirectory
from fedapp.trained_models.personalise import personalise

pytestmark = pytest.mark.usefixtures("few_images")

KEPT = {"checkpoint_every": 1, "checkpoint_keep": 0, "keep_state": True}
METHODS = [
    {"method": "scaffold"},
    {"method": "moon"},
    {"method": "feddyn"},
    {"method": "fedcurv"},
    {"method": "scaffold", "regulariser": "moon"},
    {"method": "fednova", "fednova_correction": "own"},
    {"method": "fedcurv", "fedcurv_accumulate": True},
    {"method": "centralised"},
]


@pytest.fixture
def trainings(monkeypatch):
    """Collect the models of every training, by round and client."""
    found = defaultdict(list)
    work = LocalClient.work

    def noted(self, received, server_round, lr):
        update = work(self, received, server_round, lr)
        found[server_round, self.client].append(hashed(list(update.shared.values())))
        return update

    monkeypatch.setattr(LocalClient, "work", noted)
    return found


def hashed(arrays: list[np.ndarray]) -> str:
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()


def train(folder: Path, state_dir: str = "", **changes) -> RunDirectory:
    config = settings(
        output_dir=str(folder), run_name="run", num_clients=5, participation=0.6,
        **{"num_rounds": 3, **changes},
    )  # fmt: skip
    grid = InProcessGrid(config, 2)
    for context in grid.contexts.values():
        context.node_config["state-dir"] = state_dir
    server_app.run(grid, config, "", time.monotonic())
    return RunDirectory.load(folder / "run")


def states(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("method", METHODS, ids=lambda keys: "+".join(map(str, keys.values())))
def test_local_models_are_those_of_the_run_during_it_and_afterwards(method, trainings, tmp_path):
    run = train(tmp_path, **method, **KEPT, analyses="divergence", analysis_every=1)
    assert {server_round for server_round, _ in trainings} == {1, 2, 3}
    for models in trainings.values():
        assert len(models) == 2  # in the run, and to measure it
    during = store.read(run)[-1]["measures"]
    before = states(tmp_path / "client-states")
    assert before
    saved = SavedRun(run)
    assert saved.measurable()[-1] == 3
    saved.measure(3, ["divergence"], 0)
    saved.measure(4, ["divergence"], 0)  # never run, and as well defined
    assert store.read(run)[2]["measures"] == during
    assert states(tmp_path / "client-states") == before
    assert all(len(set(models)) == 1 for models in trainings.values())


def test_measuring_changes_no_bit_of_the_run(tmp_path):
    plain = train(tmp_path / "a", method="scaffold")
    measured = train(tmp_path / "b", method="scaffold", analyses="norms", analysis_every=1)
    one, other = (run.path / "model.safetensors" for run in (plain, measured))
    assert one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize("method", ["moon", "fedcurv"])
def test_rounds_whose_states_are_gone_are_refused_in_words(method, tmp_path):
    run = train(tmp_path / "kept", method=method, **KEPT)
    with pytest.raises(UserError, match=r"already trained round 3, .*checkpoint-every=1 keep-st"):
        SavedRun(run).measure(1, ["norms"], 0)
    lost = train(tmp_path / "lost", method=method, checkpoint_every=1, state_missing="reinit")
    with pytest.raises(UserError, match=r"cannot train round 3 again: .*its state is gone"):
        SavedRun(lost).measure(3, ["norms"], 0)
    assert SavedRun(lost).measure(3, ["four-factors"], 0)["clients"] == []
    bare = train(tmp_path / "bare", method=method)
    with pytest.raises(UserError, match="the server's state was not kept"):
        SavedRun(bare).measure(4, ["norms"], 0)


def test_a_run_goes_on_where_the_server_has_not_its_clients_states(tmp_path, capsys):
    elsewhere = str(tmp_path / "elsewhere")
    run = train(tmp_path, elsewhere, method="scaffold", analyses="norms", analysis_every=1)
    assert run.summary()["status"] == "completed"
    assert [entry["round"] for entry in store.read(run)] == [1]  # nobody kept anything before it
    assert "analysis of round 2 is left out: client" in capsys.readouterr().out


def test_local_models_have_the_rate_of_the_run_before_it_got_more_rounds(trainings, tmp_path):
    keys = {"method": "fedavg", "lr_schedule": "step", "checkpoint_every": 1, "checkpoint_keep": 0}
    train(tmp_path, num_rounds=2, **keys)
    run = train(tmp_path, num_rounds=4, resume="auto", **keys)
    saved = SavedRun(run)
    assert saved.config.lr_at(2) > run.rounds()[1]["lr"]
    saved.measure(2, ["norms"], 1)
    (measured,) = [models for models in trainings.values() if len(models) == 2]
    assert len(set(measured)) == 1


def test_the_model_of_an_earlier_end_is_not_that_of_the_newest_round(tmp_path):
    run = train(tmp_path, method="fedavg", num_rounds=2)
    assert SavedRun(run).measurable() == [3]
    assert read_model(run)
    run.remove_summary()  # as when the run goes on
    assert SavedRun(run).measurable() == [1]
    for read in (lambda: read_model(run), lambda: personalise(run.path, {"finetune-epochs": 1})):
        with pytest.raises(UserError, match=r"of an earlier end of this run, which goes on or was"):
            read()
    run.write_summary({"status": "completed"})
    run.model_path.write_bytes(run.model_path.read_bytes()[:-9])
    with pytest.raises(
        UserError, match=r"model.safetensors does not contain the model of this run"
    ):
        read_model(run)
    (run.checkpoints / "round-000001-copy.safetensors").touch()
    assert SavedRun(run).measurable() == [3]


def test_a_round_of_rate_0_trains_nobody(tmp_path):
    run = train(tmp_path, method="fedavg", num_rounds=2, lr_schedule="cosine")
    saved = SavedRun(run)
    assert saved.measurable() == [3]
    with pytest.raises(UserError, match=r"round 3 .*learning rate 0 .*'cosine'.*known: rounds 1\)"):
        saved.measure(3, ["four-factors", "norms"], 1)
    assert saved.measure(3, ["four-factors"], 1)["clients"] == []
    assert saved.measure(1, ["norms"], 1)["clients"] != []
