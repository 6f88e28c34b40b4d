"""The list of runs below a folder: what is found, its state, and what is damaged or no run."""

import json
import os
import shutil

import pytest
from typer.testing import CliRunner

from fedapp import list_runs
from fedapp.cli.app import app
from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError
from fedapp.data.partition.table import PARTITIONS
from fedapp.results.folders import LOCK, lock_run
from fedapp.results.formatting import age
from fedapp.results.run_directory import RunDirectory
from fedapp.results.run_list import runs_below, table_row


@pytest.fixture
def make_run(tmp_path):
    """Return a function that writes a run which has ended, unless its status is ""."""

    def make(name, status="completed", final=0.5, rounds=40, reason="", age=0.0, **changes):
        keys = {key.replace("_", "-"): value for key, value in changes.items()}
        folder, _, last = name.rpartition("/")
        config = parse_config({"method": "fedavg", "dataset": "digits", **keys}).flat()
        run = RunDirectory.create(tmp_path / folder, last, {**config, "run-name": last})
        run.log_round(*({"round": number} for number in range(1, rounds + 1)))
        if status:
            summary = {"status": status, "reason": reason, "rounds": rounds}
            run.write_summary({**summary, "accuracy_final": final})
        for file in run.path.iterdir():
            os.utime(file, (file.stat().st_mtime - age,) * 2)
        return run

    return make


def command(*arguments):
    return CliRunner().invoke(app, ["runs", *map(str, arguments)])


def rows_of(folder, order="age"):
    return {each.figures["run"]: each.figures for each in runs_below(folder, order)}


def test_runs_of_sweeps_are_found_by_their_path_with_what_they_are(make_run, tmp_path):
    make_run("one", seed=3, num_rounds=120, partition="lda", alpha=0.3, age=10_000)
    make_run("sweep/seed0", "failed", None, 7, reason="no client replied", age=200)
    first, second = (table_row(each) for each in runs_below(tmp_path))
    assert first["run"] == "sweep/seed0"
    assert (first["status"], first["rounds"], first["final"]) == (
        "failed: no client replied",
        "7/120",
        "-",
    )
    assert second == {
        "run": "one",
        "method": "fedavg",
        "data set": "digits",
        "partition": "lda alpha=0.3",
        "seed": 3,
        "status": "completed",
        "rounds": "40/120",
        "final": "50.0 %",
        "age": "2 h",
    }


def test_a_run_without_a_summary_runs_if_its_folder_is_locked(make_run, tmp_path):
    going, killed = (make_run(name, "", rounds=n) for name, n in (("going", 3), ("killed", 5)))
    (killed.path / LOCK).touch()
    make_run("stopped", "interrupted", None)
    with lock_run(going.path):
        rows = rows_of(tmp_path)
    states = {name: (row["status"], row["rounds"]) for name, row in rows.items()}
    assert states == {
        "going": ("running", 3),
        "killed": ("unfinished", 5),
        "stopped": ("interrupted", 40),
    }
    assert rows_of(tmp_path)["going"]["status"] == "unfinished"


def test_looking_changes_no_file(make_run, tmp_path):
    make_run("sweep/killed", "")
    before = sorted(tmp_path.rglob("*"))
    runs_below(tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


def test_the_orders(make_run, tmp_path):
    make_run("a", final=0.5, age=300, method="fedntd")
    make_run("b", "failed", None, age=100)
    make_run("c", final=0.7, age=200, method="feddr+")
    make_run("d", final=0.6, age=400, method="fedavg")
    assert list(rows_of(tmp_path)) == ["b", "c", "a", "d"]
    assert list(rows_of(tmp_path, "final")) == ["c", "d", "a", "b"]
    assert list(rows_of(tmp_path, "method")) == ["b", "d", "c", "a"]
    with pytest.raises(UserError, match="the order 'finel' does not exist; did you mean 'final'"):
        runs_below(tmp_path, "finel")


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("config.toml", b"method = ", "damaged: config.toml is not valid TOML"),
        ("config.toml", b"\xff", "damaged: config.toml is not valid TOML"),
        ("config.toml", b"seed = 1", "damaged: config.toml is not that of a run"),
        ("config.toml", b"method = 'x'\nnum-rounds = 'many'", "damaged: config.toml has not the"),
        ("config.toml", b"method = 'x'\npartition = []", "damaged: config.toml has not the form"),
        ("summary.json", b"{", "damaged: summary.json is not a JSON object"),
        ("summary.json", b"[]", "damaged: summary.json is not a JSON object"),
        ("summary.json", b'{"status": "completed", "accuracy_final": "high"}', "damaged: summary."),
        ("metrics.jsonl", b"x\n{}\n", "damaged: metrics.jsonl line 1 is not a JSON object"),
    ],
)
def test_a_damaged_run_says_what_is_damaged_and_hides_no_other(
    make_run, tmp_path, caplog, file, content, words
):
    whole, broken = (
        make_run("whole"),
        make_run("broken", "" if file == "metrics.jsonl" else "failed"),
    )
    (broken.path / file).write_bytes(content)
    done = command(tmp_path, "--json")
    assert done.exit_code == 0, done.output
    assert len(json.loads(done.stdout)) == 2
    row = table_row(next(e for e in runs_below(tmp_path) if e.figures["run"] == "broken"))
    assert row["status"].startswith(words)
    assert str(tmp_path) not in row["status"]
    assert row["method"] == (None if file == "config.toml" else "fedavg")
    assert [each.path for each in list_runs(tmp_path)] == [whole.path]
    assert f"broken is left out: {words.removeprefix('damaged: ')}" in caplog.text


def test_both_files_of_a_run_may_be_damaged(make_run, tmp_path):
    run = make_run("broken")
    (run.path / "config.toml").write_text("=")
    (run.path / "summary.json").write_text("=")
    [row] = rows_of(tmp_path).values()
    assert "config.toml is not" in row["reason"]
    assert "summary.json is not" in row["reason"]


def test_what_is_no_run_is_left_out_but_looked_into(make_run, tmp_path):
    site = tmp_path / "site"
    make_run("site/inside/one")
    (site / "config.toml").write_text("title = 'of another program'")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "config.toml").write_text("no TOML")
    (tmp_path / "data").mkdir()
    shutil.copytree(site / "inside" / "one", tmp_path / ".hidden" / "two")
    assert list(rows_of(tmp_path)) == ["site/inside/one"]
    (site / "inside" / "one" / "copies").mkdir()
    shutil.copy(site / "inside" / "one" / "config.toml", site / "inside" / "one" / "copies")
    assert list(rows_of(tmp_path)) == ["site/inside/one"], "nothing inside a run"


def test_a_run_of_another_version_lacks_what_its_files_do_not_have(tmp_path):
    run = RunDirectory.create(tmp_path, "old", {"method": "gone", "partition": "other"})
    [row] = rows_of(tmp_path).values()
    assert (row["dataset"], row["partition"], row["seed"]) == (None, "other", None)
    assert table_row(runs_below(tmp_path)[0])["rounds"] == "0/-"
    assert list(rows_of(run.path)) == ["old"]


def test_linked_folders_are_followed_and_circles_end(make_run, tmp_path):
    make_run("there/one")
    here = tmp_path / "here"
    here.mkdir()
    (here / "link").symlink_to(tmp_path / "there")
    (here / "circle").symlink_to(here)
    (here / "again").symlink_to(tmp_path / "there" / "one")
    assert len(rows_of(here)) == 1


def test_partitions_are_named_by_their_main_parameter(make_run, tmp_path):
    keys = {name: kind.key for name, kind in PARTITIONS.items()}
    assert set(keys.values()) - {""} <= parse_config({}).flat().keys()
    make_run("shards", partition="shards", shards=3)
    make_run("iid", partition="iid")
    found = {name: row["partition"] for name, row in rows_of(tmp_path).items()}
    assert found == {"shards": "shards=3", "iid": "iid"}


def test_the_command(make_run, tmp_path, monkeypatch):
    make_run("runs/sweep/seed1", seed=1)
    monkeypatch.chdir(tmp_path)
    assert "sweep/seed1" in command().stdout
    [row] = json.loads(command("--json").stdout)
    assert (row["run"], row["seed"], row["rounds"], row["num_rounds"]) == (
        "sweep/seed1",
        1,
        40,
        120,
    )
    assert (row["accuracy_final"], row["status"]) == (0.5, "completed")
    (tmp_path / "empty").mkdir()
    assert command("empty").stdout.strip() == "Runs in empty: none"
    assert "nothing is not a folder; give the folder that has" in str(command("nothing").exception)
    assert "the order 'x' does not exist" in str(command("--sort", "x").exception)


def test_runs_from_python_are_run_objects_in_the_chosen_order(make_run, tmp_path, monkeypatch):
    make_run("runs/a", final=0.5)
    make_run("runs/b/c", final=0.9, age=1000)
    monkeypatch.chdir(tmp_path)
    assert [run.name for run in list_runs()] == ["a", "c"]
    best = list_runs("runs", sort="final")[0]
    assert (best.name, best.summary["accuracy_final"], best.completed) == ("c", 0.9, True)
    with pytest.raises(UserError, match="is not a folder"):
        list_runs("no-such-folder")


def test_an_age_is_in_its_largest_unit():
    seconds = {0: "0 s", 59.9: "59 s", 60: "1 min", 3599: "59 min", 3600: "1 h", 172799: "47 h"}
    assert {number: age(number) for number in seconds} == seconds
    assert age(172800) == "2 days"
