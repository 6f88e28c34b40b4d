"""A split from a file gives each client the listed images, or names what is wrong in the file."""

import json
from pathlib import Path

import numpy as np
import pytest
from in_process import ROOT, federate, settings
from typer.testing import CliRunner

from fedapp import server_app
from fedapp.analysis.saved_runs import SavedRun
from fedapp.cli import app as cli
from fedapp.config.project import merge
from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError
from fedapp.data.partition.split_file import find_split, source, write_split
from fedapp.data.partition.table import Partition, PartitionSpec, make_partition
from fedapp.engines.in_process import InProcessGrid
from fedapp.models.initial import find_initial
from fedapp.results.comparison.groups import group_runs
from fedapp.results.run_directory import RunDirectory
from fedapp.runtime.node.identity import shared_properties
from fedapp.runtime.process.context import ProcessContext, close_process
from fedapp.runtime.process.earlier_run import changed_file
from fedapp.runtime.process.run_data import load_partition
from fedapp.runtime.server.preflight import wait_for_nodes
from fedapp.trained_models.personalise import personalise
from strategies.rounds.base import ClientStrategy
from strategies.rounds.report import RoundFailed

TRAIN, TEST = np.array([0, 0, 1, 1, 2, 2, 0, 1]), np.array([0, 1, 2, 0, 1, 2])
TWO = [[0, 2, 3], [1, 4, 5]]


def draw(path: Path, content: object, num_clients: int = 2, pooled: bool = False) -> Partition:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    train = test = np.concatenate([TRAIN, TEST])
    if not pooled:
        train, test = TRAIN, TEST
    return make_partition(
        "file", train, test, PartitionSpec(num_clients, pooled=pooled, file=path), seed=0
    )


def lists(parts: list[np.ndarray]) -> list[list[int]]:
    return [part.tolist() for part in parts]


def test_clients_get_the_listed_images(tmp_path):
    drawn = draw(tmp_path / "split.json", {"train": TWO, "test": [[5], []]})
    assert (lists(drawn.train), lists(drawn.test), drawn.pooled) == (TWO, [[5], []], False)


def test_test_parts_that_are_not_listed_have_the_training_classes(tmp_path):
    drawn = draw(tmp_path / "split.json", {"train": [[0, 1], [2, 3]]})
    assert [set(TEST[part]) for part in drawn.test] == [{0}, {1}]


def test_a_pool_is_divided_as_listed_or_a_quarter_is_held_out(tmp_path):
    listed = {"train": TWO, "test": [[6, 13], [7]], "pooled": True}
    drawn = draw(tmp_path / "split.json", listed, pooled=True)
    assert (lists(drawn.test), drawn.pooled) == ([[6, 13], [7]], True)
    assert drawn.global_test_set().tolist() == [6, 7, 13]
    drawn = draw(tmp_path / "split.json", {"train": [[*range(8)], [*range(8, 14)]]}, pooled=True)
    assert [len(part) for part in drawn.test] == [2, 2]
    assert sorted([*drawn.train[0], *drawn.test[0]]) == [*range(8)]


@pytest.mark.parametrize("pooled", [False, True])
def test_a_saved_split_is_read_back(tmp_path, pooled):
    labels = np.repeat(np.arange(4), 100)
    drawn = make_partition("iid", labels, labels, PartitionSpec(3, pooled=pooled), seed=1)
    write_split(tmp_path / "split.json", drawn)
    spec = PartitionSpec(3, pooled=pooled, file=tmp_path / "split.json")
    again = make_partition("file", labels, labels, spec, seed=2)
    assert lists(again.train) == lists(drawn.train)
    assert lists(again.test) == lists(drawn.test)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot read partition-file .*split.json: .*it must be JSON"),
        ([TWO], 'must be a JSON object with "train"'),
        ({"train": TWO, "tests": TWO}, 'must be a JSON object with "train"'),
        ({"train": TWO[:1]}, '"train" of .* has 1 lists, but num-clients is 2'),
        ({"train": 3}, '"train" of .* has no lists'),
        ({"train": [[0], [1.0]]}, 'client 1 in "train" of .* must be a list of whole numbers'),
        ({"train": [[0], [True]]}, "whole numbers"),
        ({"train": [[0], [8]]}, 'client 1 in "train" of .* has 8, but there are images 0 to 7'),
        ({"train": [[0], [-1]]}, "has -1, but there are images 0 to 7"),
        ({"train": TWO, "test": [[6], [0]]}, 'client 0 in "test" of .* has 6'),
        ({"train": [[0], []]}, 'client 1 in "train" of .* has no images'),
        ({"train": [[0, 1], [1]]}, '"train" of .* lists image 1 more than once'),
        ({"train": TWO, "test": [[], [0, 0]]}, 'client 1 in "test" of .* more than once'),
        ({"train": TWO, "pooled": True}, "is of pooled data: set pool-data=true"),
        ({"train": TWO, "pooled": None}, '"pooled" of .* must be true or false'),
        ("[" * 100_000, "cannot read partition-file"),
    ],
)
def test_a_wrong_file_is_refused_in_one_sentence(tmp_path, content, message):
    with pytest.raises(UserError, match=message):
        draw(tmp_path / "split.json", content)


def test_a_pooled_image_is_not_trained_and_tested_on(tmp_path):
    shared = {"train": TWO, "test": [[5], [7]]}
    with pytest.raises(UserError, match='image 5 is both in "train" and in "test"'):
        draw(tmp_path / "split.json", shared, pooled=True)
    with pytest.raises(UserError, match="is of unpooled data: set pool-data=false"):
        draw(tmp_path / "split.json", {"train": TWO, "pooled": False}, pooled=True)
    with pytest.raises(UserError, match=r'"test" of .* has no images'):
        draw(tmp_path / "split.json", {"train": TWO, "test": [[], []]}, pooled=True)
    with pytest.raises(UserError, match=r"client 1 .* has one image and no test images"):
        draw(tmp_path / "split.json", {"train": [[0, 1], [2]]}, pooled=True)


@pytest.mark.parametrize("keys", [{"partition": "file"}, {"partition_file": "split.json"}])
def test_the_partition_and_its_file_belong_together(keys):
    with pytest.raises(UserError, match="set both or none"):
        parse_config(settings(**keys))


def test_centralised_training_ignores_the_split(tmp_path):
    keys = {"method": "centralised", "partition": "file", "partition_file": "split.json"}
    config = parse_config(settings(**keys))
    assert (config.partition, config.partition_file, config.num_clients) == ("iid", "", 1)


def test_a_relative_file_is_in_the_data_folder_or_the_current_one(tmp_path, monkeypatch):
    data_dir, current = tmp_path / "data", tmp_path / "here"
    for folder in (data_dir, current):
        folder.mkdir()
    monkeypatch.chdir(current)
    assert find_split("split.json", str(data_dir)) == Path("split.json")
    (current / "split.json").touch()
    merged = merge(ROOT, {"partition-file": "split.json", "data-dir": str(data_dir)})
    assert merged["partition-file"] == str(current / "split.json")
    (data_dir / "split.json").touch()
    assert find_split("split.json", str(data_dir)) == data_dir / "split.json"
    assert find_split(merged["partition-file"], str(data_dir)) == current / "split.json"


def test_a_path_that_cannot_be_looked_at_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match=r"partition-file: .* cannot be read: File name too long"):
        find_split("x" * 300, str(tmp_path))
    with pytest.raises(UserError, match=r"initial-model: .* cannot be read: File name too long"):
        find_initial("x" * 300, str(tmp_path))


def test_a_missing_file_is_named(tmp_path):
    keys = {"partition": "file", "partition_file": str(tmp_path / "none.json")}
    with pytest.raises(UserError, match=r"cannot read partition-file .*none\.json: .*No such"):
        load_partition(parse_config(settings(**keys)))


def test_the_command_saves_the_split_that_a_run_then_uses(tmp_path):
    path = tmp_path / "split.json"
    keys = "num-clients=5 partition='lda' alpha=0.5 seed=3"
    done = CliRunner().invoke(cli.app, ["partition", "-c", keys, "--save", str(path)])
    assert done.exit_code == 0, done.output
    assert f"wrote {path}" in done.stderr
    drawn = load_partition(
        parse_config(settings(num_clients=5, partition="lda", alpha=0.5, seed=3))
    )[1]
    read = load_partition(
        parse_config(settings(num_clients=5, partition="file", partition_file=str(path)))
    )[1]
    assert lists(read.train) == lists(drawn.train)
    assert lists(read.test) == lists(drawn.test)


def test_a_host_whose_copy_of_the_file_differs_is_refused(tmp_path):
    hosts = [tmp_path / "server", tmp_path / "node"]
    for first, folder in enumerate(hosts):
        folder.mkdir()
        content = {"train": [[*range(first, 100)], [*range(100, 200)]]}
        (folder / "split.json").write_text(json.dumps(content))
    values = settings(
        num_clients=2, partition="file", partition_file="split.json", data_dir=str(hosts[0])
    )
    expected = shared_properties(ProcessContext(parse_config(values)))
    assert wait_for_nodes(InProcessGrid(values, 2), 2, expected, 5)
    grid = InProcessGrid(values, 2)
    for context in grid.contexts.values():
        context.node_config["data-dir"] = str(hosts[1])
    sentence = r"another split \(split.json .*copy the server's partition-file there"
    with pytest.raises(UserError, match=sentence):
        wait_for_nodes(grid, 2, expected, 5)


def test_a_host_whose_copy_of_the_file_changes_during_the_run_is_refused(tmp_path):
    split = tmp_path / "split.json"

    def write(first: list[int], second: list[int]) -> None:
        split.write_text(json.dumps({"train": [first, second]}))

    def exchange_images(strategy: ClientStrategy) -> None:
        write([*range(50, 150)], [*range(50), *range(150, 200)])
        close_process()  # like a SuperNode, which starts a process for every message

    write([*range(100)], [*range(100, 200)])
    values = settings(
        method="fedavg", num_clients=2, participation=1.0, num_rounds=2, partition="file",
        partition_file=str(split),
    )  # fmt: skip
    sentence = "client 0 failed in round 2: its node has the files 'split split.json .*', but the "
    with pytest.raises(RoundFailed, match=f"{sentence}run began with 'split split.json"):
        federate(values, 2, after_round=exchange_images)
    write([*range(100)], [*range(100, 200)])
    close_process()
    assert len(federate(values, 2, after_round=lambda strategy: close_process())[2]) == 2


def test_a_run_resumes_only_with_the_split_that_it_began_with(tmp_path):
    split = tmp_path / "split.json"

    def run(first: int, path: Path = split, name: str = "one", **changes: object) -> RunDirectory:
        path.write_text(json.dumps({"train": [[*range(first, 100)], [*range(100, 200)]]}))
        values = settings(
            output_dir=str(tmp_path), run_name=name, num_clients=2, participation=1.0,
            method="fedavg", partition="file", partition_file=str(path), checkpoint_every=1,
            lr_schedule="constant", **changes,
        )  # fmt: skip
        server_app.run(InProcessGrid(values), values, "", 0.0)
        return RunDirectory.load(tmp_path / name)

    one = run(0)
    assert len(one.rounds()) == 2
    assert one.used_files() == {"split": source(split)}
    before = (tmp_path / "one" / "partition.json").read_bytes()
    another_split = r"one was trained with the split split.json .* instead of"
    with pytest.raises(UserError, match=another_split):
        run(1, num_rounds=3, resume="auto")
    with pytest.raises(UserError, match=another_split):
        personalise(one.path, {})
    summary = one.summary()
    one.remove_summary()  # of a run that has not ended only the data are compared
    with pytest.raises(UserError, match="their division among the clients, differ"):
        run(1, num_rounds=3, resume="auto")
    with pytest.raises(UserError, match="their division among the clients, differ"):
        SavedRun(one)
    one.write_summary(summary)
    assert (tmp_path / "one" / "partition.json").read_bytes() == before
    other = run(1, name="two")
    assert changed_file(other, parse_config(other.config())) == ""
    assert "the split split.json " in changed_file(one, parse_config(other.config()))
    assert len(group_runs([one, other])) == 2
    moved = tmp_path / "moved.json"
    assert len(run(0, path=moved, num_rounds=3, resume="auto").rounds()) == 3
