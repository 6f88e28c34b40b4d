"""keep-best: the model with the highest accuracy, also over a resume, and its use afterwards."""

import json
import shutil

import pytest
from in_process import settings, train_one
from safetensors.numpy import load_file
from typer.testing import CliRunner

from fedapp.cli import app as cli
from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError
from fedapp.interface import load_run
from fedapp.results.final_model import kept_best, model_file, read_model
from fedapp.results.run_directory import RunDirectory
from fedapp.runtime.callbacks.best_model import BestModel

KEYS = {
    "method": "fedavg", "num_rounds": 8, "lr": 0.1, "lr_schedule": "constant",
    "participation": 0.2, "keep_best": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train_one(tmp_path_factory.mktemp("kept"), **KEYS)


def best_row(run):
    return max(run.rounds(), key=lambda row: row["accuracy"])


def test_the_model_of_the_best_round_is_kept(run, tmp_path):
    row, best = best_row(run), kept_best(run)
    assert (best.server_round, best.accuracy) == (row["round"], row["accuracy"])
    assert row["round"] < len(run.rounds())  # else this test could not tell it from the final one
    shorter = train_one(tmp_path, **{**KEYS, "num_rounds": row["round"]})
    kept, final = load_file(model_file(run, "best")), load_file(shorter.model_path)
    assert all((kept[name] == final[name]).all() for name in final)


def test_it_is_tested_and_exported_by_name(run):
    scores = load_run(run.path).test(which="best")
    row = best_row(run)
    assert scores.accuracy == pytest.approx(row["accuracy"])
    assert scores.model == f"the best model (round {row['round']})"
    assert scores.file.name == "test-best.json"
    assert load_run(run.path).export(which="best") == run.path / "model-best.pt2"


def test_the_command_takes_the_word(run):
    done = CliRunner().invoke(cli.app, ["test", str(run.path), "--which", "best"])
    assert f"the best model (round {best_row(run)['round']})" in done.output


def test_a_resumed_run_keeps_the_best_model_of_its_earlier_rounds(run, tmp_path):
    number = best_row(run)["round"]
    half = train_one(tmp_path, **{**KEYS, "num_rounds": number})
    before = model_file(half, "best").stat().st_mtime_ns
    resumed = train_one(tmp_path, **KEYS, resume=str(half.path))
    assert [row["accuracy"] for row in resumed.rounds()] == [r["accuracy"] for r in run.rounds()]
    assert kept_best(resumed) == kept_best(run)
    assert model_file(resumed, "best").stat().st_mtime_ns == before


def test_a_best_model_of_a_later_round_than_the_checkpoint_is_made_again(run, tmp_path):
    whole, number = train_one(tmp_path, **KEYS, checkpoint_keep=0), best_row(run)["round"]
    for file in whole.checkpoints.iterdir():
        if int("".join(filter(str.isdigit, file.stem))) >= number:
            file.unlink()
    before = model_file(whole, "best").stat().st_mtime_ns
    resumed = train_one(tmp_path, **KEYS, resume=str(whole.path))
    assert kept_best(resumed) == kept_best(run)
    assert model_file(resumed, "best").stat().st_mtime_ns > before
    kept = load_file(model_file(run, "best"))
    assert all((kept[n] == a).all() for n, a in read_model(resumed, "best").items())


def test_a_model_of_rounds_that_were_trained_again_and_a_damaged_one_are_refused(run, tmp_path):
    copy = RunDirectory(shutil.copytree(run.path, tmp_path / "copy"))
    rows = [{**row, "accuracy": row["accuracy"] / 2} for row in run.rounds()]
    copy.metrics_path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    with pytest.raises(
        UserError, match=r"best\.safetensors is of rounds that this run has trained"
    ):
        load_run(copy.path).test(which="best")
    model_file(copy, "best").write_bytes(b"not a model")
    with pytest.raises(
        UserError, match=r"best\.safetensors does not contain the model of this run"
    ):
        load_run(copy.path).model(which="best")


def test_a_lower_accuracy_or_a_round_without_test_changes_nothing(run):
    callback, before = BestModel(), model_file(run, "best").stat().st_mtime_ns
    callback._accuracy = 0.9
    for accuracy in (None, 0.5, 0.9):
        callback.round_ends(None, {"round": 9, "accuracy": accuracy})
    assert model_file(run, "best").stat().st_mtime_ns == before


def test_a_run_without_it_and_an_unknown_word_are_refused(tmp_path):
    plain = train_one(tmp_path, method="fedavg", num_rounds=1)
    assert kept_best(plain) is None
    with pytest.raises(UserError, match=r"best\.safetensors is missing; a run with keep-best=true"):
        read_model(plain, "best")
    with pytest.raises(UserError, match=r"'last' is no model of a run: 'final', 'best', 'calib"):
        load_run(plain.path).model(which="last")


@pytest.mark.parametrize("method", ["fedper", "feddor", "fedavg-ft"])
def test_methods_without_one_global_model_are_refused(method):
    parse_config(settings(method=method, partition="lda"))
    with pytest.raises(UserError, match=r"'keep-best' keeps the best global model, but"):
        parse_config(settings(method=method, partition="lda", keep_best=True))
