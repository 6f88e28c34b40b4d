"""The run directory keeps what it was given, through crashes, resumption and wrong use."""

import json
import re
import resource
import string
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from fedapp.core import files
from fedapp.core.errors import UserError
from fedapp.results.run_directory import RunDirectory

CONFIG = {"method": "feddr+", "dataset": "digits", "num_rounds": 3, "lr": 0.05, "resume": False}


@pytest.fixture
def run(tmp_path):
    return RunDirectory.create(tmp_path, "one", CONFIG)


def test_create_writes_the_configuration_with_kebab_case_keys(run, tmp_path):
    assert run.path == tmp_path / "one"
    assert run.path.is_absolute()
    assert run.checkpoints.is_dir()
    assert run.config() == {
        "method": "feddr+",
        "dataset": "digits",
        "num-rounds": 3,
        "lr": 0.05,
        "resume": False,
    }


def test_relative_output_dir_becomes_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert RunDirectory.create("runs", "x", CONFIG).path == tmp_path / "runs" / "x"


def test_nameless_runs_are_named_after_method_dataset_and_time_and_stay_apart(tmp_path):
    names = [RunDirectory.create(tmp_path, "", CONFIG).name for _ in range(3)]
    assert len(set(names)) == 3
    assert all(re.fullmatch(r"feddr\+-digits-\d{8}-\d{6}(-\d)?", name) for name in names)


def test_used_directory_is_refused_by_name_unless_resumed(run, tmp_path):
    run.log_round({"round": 1})
    with pytest.raises(
        UserError, match=rf"{re.escape(str(run.path))} .* set resume='auto' to train that run from"
    ):
        RunDirectory.create(tmp_path, "one", CONFIG)
    again = RunDirectory.create(tmp_path, "one", {**CONFIG, "num_rounds": 5}, resume=True)
    assert again.rounds() == [{"round": 1}]
    assert again.config() == run.config()
    again.write_config({**CONFIG, "num_rounds": 5})
    assert again.config()["num-rounds"] == 5


def test_empty_directory_may_be_used(tmp_path):
    (tmp_path / "one").mkdir()
    assert RunDirectory.create(tmp_path, "one", CONFIG).config()["method"] == "feddr+"


def test_resume_never_writes_into_a_folder_that_is_no_run(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"cat")
    with pytest.raises(UserError, match="not a run directory"):
        RunDirectory.create(tmp_path, "photos", CONFIG, resume=True)
    assert [path.name for path in (tmp_path / "photos").iterdir()] == ["cat.jpg"]


@pytest.mark.parametrize("name", ["a/b", "..", ".", "/tmp/x", "a\\b", "a\0b"])
def test_run_name_must_be_a_folder_name(tmp_path, name):
    with pytest.raises(UserError, match="plain folder name"):
        RunDirectory.create(tmp_path, name, CONFIG)


def test_output_dir_that_cannot_be_written_is_named(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with pytest.raises(UserError, match=re.escape(f"output-dir {blocked / 'runs'}")):
        RunDirectory.create(blocked / "runs", "x", CONFIG)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(28, "No space left on device"), "No space left on device"),
        (PermissionError(13, "Permission denied", "x.tmp"), "Permission denied: x.tmp"),
    ],
)
def test_a_run_directory_that_cannot_be_written_is_named(run, monkeypatch, error, reason):
    run.log_round({"round": 1})

    def refuse(path, content):
        raise error

    monkeypatch.setattr("fedapp.results.run_directory.write_atomically", refuse)
    for write in (
        lambda: RunDirectory.create(run.path.parent, "one", CONFIG, resume=True),
        lambda: run.truncate_rounds(0),
        lambda: run.write_partition([[1]], ["cat"]),
        lambda: run.write_config(CONFIG),
        run.state_key,
    ):
        with pytest.raises(UserError) as caught:
            write()
        assert str(caught.value) == (
            f"run directory {run.path} cannot be written ({reason}); make room for it, get write "
            "access, or give another output-dir."
        )
    assert run.rounds() == [{"round": 1}]


def test_load_refuses_what_is_no_run_directory(run, tmp_path):
    assert RunDirectory.load(str(run.path)) == run
    with pytest.raises(UserError, match=r"has no config\.toml"):
        RunDirectory.load(tmp_path)
    with pytest.raises(UserError, match="not a folder"):
        RunDirectory.load(tmp_path / "missing")


def test_damaged_files_are_named(run):
    (run.path / "config.toml").write_text("= 1")
    with pytest.raises(UserError, match=r"config\.toml is not valid TOML"):
        run.config()
    (run.path / "summary.json").write_text("[1]")
    with pytest.raises(UserError, match=r"summary\.json is not a JSON object"):
        run.summary()


def test_rounds_without_a_file_are_none(run):
    assert run.rounds() == []
    assert run.summary() == {}
    assert run.partition() == {}


def test_numpy_torch_and_non_finite_values_are_written_as_strict_json(run):
    row = {
        "round": np.int64(1),
        "accuracy": np.float32(0.5),
        "loss": float("nan"),
        "train_loss": torch.tensor(float("inf")),
        "class_accuracy": np.array([0.25, np.nan]),
        "nested": {"values": (1, -np.inf)},
    }
    run.log_round(row)
    line = run.metrics_path.read_text()
    assert line.endswith("\n")
    assert json.loads(line, parse_constant=pytest.fail) == {
        "round": 1,
        "accuracy": 0.5,
        "loss": None,
        "train_loss": None,
        "class_accuracy": [0.25, None],
        "nested": {"values": [1, None]},
    }


@given(cut=st.integers(min_value=0), count=st.integers(1, 5))
def test_a_torn_file_gives_back_every_whole_line(tmp_path_factory, cut, count):
    run = RunDirectory.create(tmp_path_factory.mktemp("runs"), "torn", CONFIG)
    rows = [{"round": number, "note": "ä\n"} for number in range(1, count + 1)]
    for row in rows:
        run.log_round(row)
    whole = run.metrics_path.read_bytes()
    kept = whole[: cut % (len(whole) + 1)]
    run.metrics_path.write_bytes(kept)
    line = len(whole) // count
    expected = rows[: (len(kept) + 1) // line]  # all but its newline is already a whole line
    assert run.rounds() == expected
    again = RunDirectory.create(run.path.parent, "torn", CONFIG, resume=True)
    again.log_round({"round": 99})
    assert again.rounds() == [*expected, {"round": 99}]


def test_a_full_disk_leaves_no_part_of_a_round(run):
    run.log_round({"round": 1})
    size = run.metrics_path.stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 5, limits[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            run.log_round({"round": 2}, {"round": 3})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert run.metrics_path.stat().st_size == size
    run.log_round({"round": 2}, {"round": 3})
    assert [row["round"] for row in run.rounds()] == [1, 2, 3]


def test_damage_before_the_last_line_is_an_error_with_its_line(run):
    for line in ('{"rou', "{}", '{"round": "2"}'):
        run.metrics_path.write_text(f'{{"round": 1}}\n{line}\n{{"round": 3}}\n')
        with pytest.raises(UserError, match=r"metrics\.jsonl line 2 is not a JSON object with"):
            run.rounds()


def test_truncate_forgets_later_rounds(run):
    for number in range(1, 6):
        run.log_round({"round": number})
    run.truncate_rounds(after=3)
    assert [row["round"] for row in run.rounds()] == [1, 2, 3]
    run.truncate_rounds(after=0)
    assert run.rounds() == []


def test_partition_and_summary_come_back(run):
    run.write_partition(np.array([[3, 0], [1, 2]]), ("cat", "dog"), np.array([[1, 0], [0, 1]]))
    assert run.partition() == {
        "class_names": ["cat", "dog"],
        "train_counts": [[3, 0], [1, 2]],
        "test_counts": [[1, 0], [0, 1]],
        "data_hash": "",
    }
    run.write_summary({"status": "completed", "accuracy_final": np.float64("nan")})
    run.write_summary({"status": "failed", "accuracy_final": 0.5})
    assert run.summary() == {"status": "failed", "accuracy_final": 0.5}


def test_interrupted_write_leaves_the_old_file_and_no_litter(run, monkeypatch):
    run.write_summary({"status": "completed"})
    before = sorted(path.name for path in run.path.iterdir())

    def crash(*_):
        raise OSError("disk full")

    monkeypatch.setattr(files.os, "replace", crash)
    with pytest.raises(OSError, match="disk full"):
        run.write_summary({"status": "failed"})
    assert run.summary() == {"status": "completed"}
    assert sorted(path.name for path in run.path.iterdir()) == before


def test_model_comes_back_with_metadata(run):
    tensors = {
        "torch": torch.arange(6.0).reshape(2, 3).T.requires_grad_(),
        "numpy": np.arange(4, dtype=np.int64)[::-1],
        "scalar": np.float32(2.5) * np.ones(()),
        "half": torch.ones(3, dtype=torch.bfloat16),
    }
    tensors["tied"] = tensors["torch"]
    path = run.save_model(tensors, {"method": "feddr+", "round": "3"})
    assert path == run.path / "model.safetensors"
    with safe_open(path, "pt") as file:
        assert file.metadata() == {"method": "feddr+", "round": "3"}
        loaded = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    assert loaded.keys() == tensors.keys()
    assert torch.equal(loaded["torch"], tensors["torch"])
    assert torch.equal(loaded["tied"], tensors["torch"])
    assert loaded["numpy"].tolist() == [3, 2, 1, 0]
    assert loaded["scalar"].shape == ()
    assert loaded["half"].dtype == torch.bfloat16


@given(st.dictionaries(st.text(max_size=20), st.text(max_size=20), max_size=5))
def test_any_metadata_survives_in_an_aligned_file(metadata):
    content = files.safetensors_bytes({"a": np.ones(3)}, metadata)
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    assert header["__metadata__"] == metadata
    assert end % 8 == 0
    start, stop = header["a"]["data_offsets"]
    assert np.frombuffer(content[end + start : end + stop]).tolist() == [1, 1, 1]


def test_equal_models_are_equal_files_in_every_process():
    script = (
        "import hashlib, numpy as np; from fedapp.core.files import safetensors_bytes as f;"
        f"print(hashlib.sha256(f({{'b': np.ones(2), 'a': np.ones(3)}}, "
        f"dict.fromkeys({string.ascii_letters!r}, 'x'))).hexdigest())"
    )
    command = [sys.executable, "-c", script]
    hashes = {subprocess.check_output(command, text=True) for _ in range(2)}
    assert len(hashes) == 1
