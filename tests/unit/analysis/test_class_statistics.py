"""What clients tell of their features: merged as at home, calibrated with, refused if invalid."""

import json
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from in_process import ShuffledGrid, Tamper, settings
from safetensors.numpy import load_file, save_file
from sweep_runs import ROOT

from fedapp import server_app
from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError
from fedapp.core.files import write_atomically
from fedapp.engines.resources import Resources
from fedapp.experiments import sweep
from fedapp.results.run_directory import RunDirectory
from fedapp.trained_models.calibrate import Retraining, calibrate
from strategies.rounds.records import TASK, UPLOADS, pack_uploads, unpack_uploads

FILE, QUICK = "class_statistics.safetensors", Retraining(features=20, epochs=1)
KEYS = {
    "method": "fedavg", "class_statistics": True, "num_clients": 6, "shards": 5, "num_rounds": 1,
}  # fmt: skip


def train(
    folder: Path, nodes: int = 3, tamper: Tamper | None = None, seed: int = 0, **changes
) -> RunDirectory:
    """Train 6 clients of the digits for a round, and get their statistics."""
    values = settings(output_dir=str(folder), run_name="one", **{**KEYS, **changes})
    server_app.run(ShuffledGrid(values, nodes, seed, tamper), values, "", 0.0)
    return RunDirectory.load(folder / "one")


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> RunDirectory:
    return train(tmp_path_factory.mktemp("digits"))


def calibrated(run: RunDirectory) -> bytes:
    """Calibrate the head of a run and return the file of its model."""
    calibrate(run.path, {}, QUICK)
    return (run.path / "calibrated.safetensors").read_bytes()


def test_the_head_is_that_which_the_clients_data_here_give_bit_for_bit(run, tmp_path):
    copy = RunDirectory.load(shutil.copytree(run.path, tmp_path / "copy"))
    by_nodes = calibrated(copy)
    (copy.path / FILE).unlink()
    assert calibrated(copy) == by_nodes


def test_the_file_is_the_same_for_other_nodes_and_another_order(run, tmp_path):
    other = train(tmp_path, nodes=6, seed=1)
    assert (other.path / FILE).read_bytes() == (run.path / FILE).read_bytes()
    counts = json.loads((run.path / "partition.json").read_text())["train_counts"]
    np.testing.assert_array_equal(load_file(run.path / FILE)["counts"], np.sum(counts, axis=0))


def test_a_completed_run_is_asked_when_it_is_resumed(run, tmp_path):
    changes = {"checkpoint_every": 1, "resume": "auto"}
    other = train(tmp_path, class_statistics=False, **changes)
    assert not (other.path / FILE).exists()
    train(tmp_path, **changes)
    assert (other.path / FILE).read_bytes() == (run.path / FILE).read_bytes()
    assert other.summary()["status"] == "completed"


def changed(client: int, **changes) -> Tamper:
    """Return what changes arrays of a client's statistics on their way; functions of the array."""

    def tamper(reply: Message) -> Message:
        if reply.metadata.message_type == "query.statistics" and UPLOADS in reply.content:
            uploads = unpack_uploads(reply.content.array_records[UPLOADS])
            if client in uploads:
                own = uploads[client]
                own |= {name: change(own[name]) for name, change in changes.items()}
                reply.content[UPLOADS] = pack_uploads(uploads)
        return reply

    return tamper


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"counts": lambda a: a + 1}, "numbers of images are not those of 239 images"),
        ({"counts": lambda a: a + [2**62, 2**62, 2**62, 2**62, 0][: len(a)]}, "numbers of images"),
        ({"counts": lambda a: a * 0}, "numbers of images are not those of 239 images"),
        ({"labels": lambda a: a + 5}, "labels are not those of classes in ascending order"),
        ({"labels": lambda a: a[::-1].copy()}, "labels are not those of classes in ascending"),
        ({"means": lambda a: a * np.nan}, "its means are not finite, or too large"),
        ({"scatters": lambda a: a + np.inf}, "its scatters are not finite, or too large"),
        ({"scatters": lambda a: a[:, :3]}, "not the arrays of such statistics"),
        ({"labels": lambda a: a[0]}, "not the arrays of such statistics"),
        ({"means": lambda a: a.astype(np.float32)}, "not the arrays of such statistics"),
    ],
)
def test_impossible_statistics_are_refused(tmp_path, changes, reason):
    with pytest.raises(UserError, match=rf"1 of 6 clients gave none \(client 4: .*{reason}"):
        train(tmp_path, tamper=changed(4, **changes))
    run = RunDirectory.load(tmp_path / "one")
    assert run.summary()["status"] == "failed"
    assert reason in run.summary()["reason"]
    assert run.summary()["accuracy_final"] is not None
    assert run.model_path.exists()
    assert not (run.path / FILE).exists()


@pytest.mark.parametrize("checkpoints", [True, False])
def test_a_sweep_repeats_a_run_without_statistics(run, tmp_path, checkpoints):
    """With a checkpoint only the clients are asked again."""
    tampers, trained = [changed(4, counts=lambda a: a + 1), None], []

    def runner(project, values, resources):
        grid = ShuffledGrid(values, 3, tamper=tampers.pop(0))
        try:
            server_app.run(grid, values, "", 0.0)
        finally:
            trained.append(sum(each.metadata.message_type == "train" for each in grid.log))
        return 0

    keys = {key.replace("_", "-"): value for key, value in KEYS.items()}
    keys |= {"checkpoint-every": int(checkpoints)}
    [planned] = sweep.plan(ROOT, settings(**keys), {}, [0], tmp_path)
    [first] = sweep.execute(ROOT, [planned], Resources(), runner)
    assert (first["status"], planned.outcome) == ("failed", "")
    assert first["reason"].startswith("class-statistics: 1 of 6 clients gave none (client 4: ")
    assert first["accuracy_final"] is not None
    [second] = sweep.execute(ROOT, [planned], Resources(), runner)
    assert (second["status"], planned.outcome) == ("completed", "completed")
    assert trained == ([2, 0] if checkpoints else [2, 2])
    assert (planned.directory.path / FILE).read_bytes() == (run.path / FILE).read_bytes()


def test_an_interrupted_request_leaves_a_run_that_is_not_completed(run, tmp_path):
    def interrupt(reply: Message) -> Message:
        if reply.metadata.message_type == "query.statistics":
            raise KeyboardInterrupt
        return reply

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, tamper=interrupt, checkpoint_every=1)
    other = RunDirectory.load(tmp_path / "one")
    assert other.summary()["status"] == "interrupted"
    train(tmp_path, resume="auto", checkpoint_every=1)
    assert other.summary()["status"] == "completed"
    assert (other.path / FILE).read_bytes() == (run.path / FILE).read_bytes()


def test_a_tolerant_run_does_without_a_node_that_fails(run, tmp_path, caplog):
    def fail(reply: Message) -> Message:
        if reply.metadata.message_type == "query.statistics" and reply.metadata.src_node_id == 101:
            reply.content = RecordDict({TASK: ConfigRecord({"error": "its disk is full"})})
        return reply

    with caplog.at_level(logging.WARNING):
        other = train(tmp_path, tamper=fail, tolerate_failures=True)
    assert "2 of 6 clients gave none (client 1: its node reported: its disk is full)" in caplog.text
    less, all_of_them = (load_file(each.path / FILE)["counts"].sum() for each in (other, run))
    partition = run.partition()["train_counts"]
    assert all_of_them - less == np.sum(partition[1]) + np.sum(partition[4])
    assert calibrated(other) != calibrated(run)


class Silent(ShuffledGrid):
    """A grid whose node 101 ends with the training."""

    def pull_messages(self, message_ids):
        asked = [
            each for each in message_ids
            if self.waiting[each].metadata.message_type != "query.statistics"
            or self.waiting[each].metadata.dst_node_id != 101
        ]  # fmt: skip
        return super().pull_messages(asked) if asked else []


def test_a_node_that_is_gone_is_not_waited_for_again(tmp_path, caplog):
    keys = {"num_clients": 6, "shards": 5, "num_rounds": 1, "round_timeout": 3.0}
    values = settings(
        output_dir=str(tmp_path), run_name="one", method="fedavg", class_statistics=True,
        tolerate_failures=True, **keys,
    )  # fmt: skip
    with caplog.at_level(logging.WARNING):
        server_app.run(Silent(values, 3), values, "", 0.0)
    assert "2 of 6 clients gave none (client 1: its node did not answer in time" in caplog.text
    assert (tmp_path / "one" / FILE).exists()


def test_a_node_tells_nothing_if_the_run_has_not_the_key(run):
    values = settings(method="fedavg", num_clients=6, shards=5, num_rounds=1)
    grid = ShuffledGrid(values, 3)
    content = RecordDict({TASK: ConfigRecord({"clients": [0]})})
    message = Message(content, dst_node_id=100, message_type="query.statistics")
    answer = grid.answer(message).content
    assert "the run is without them" in answer.config_records[TASK]["error"]
    assert UPLOADS not in answer


def test_a_client_cannot_answer_for_another(tmp_path):
    def rename(reply: Message) -> Message:
        if reply.metadata.message_type == "query.statistics" and reply.metadata.src_node_id == 101:
            uploads = unpack_uploads(reply.content.array_records[UPLOADS])
            reply.content[UPLOADS] = pack_uploads({0: uploads[1], 4: uploads[4]})
        return reply

    with pytest.raises(UserError, match=r"client 1: its node sent statistics of the clients \[0"):
        train(tmp_path, tamper=rename)


def test_without_any_clients_statistics_nothing_is_written(tmp_path):
    def lose(reply: Message) -> Message:
        if reply.metadata.message_type == "query.statistics":
            reply.content = RecordDict()
        return reply

    with pytest.raises(UserError, match=r"6 of 6 clients gave none"):
        train(tmp_path, tamper=lose, tolerate_failures=True)


def test_a_scatter_that_no_features_have_ends_the_calibration_in_a_sentence(run, tmp_path):
    copy = RunDirectory.load(shutil.copytree(run.path, tmp_path / "copy"))
    negative = train(tmp_path / "negative", tamper=changed(0, scatters=lambda a: -1e6 * a))
    with pytest.raises(UserError, match=r"has a scatter that is that of no features"):
        calibrate(negative.path, {}, QUICK)
    assert calibrated(copy)


def test_a_damaged_file_or_one_of_an_earlier_model_is_refused(run, tmp_path):
    copy = RunDirectory.load(shutil.copytree(run.path, tmp_path / "copy"))
    write_atomically(copy.model_path, copy.model_path.read_bytes()[:-4] + b"resu")
    with pytest.raises(UserError, match=r"was made from an earlier model of this run; resume the"):
        calibrate(copy.path, {}, QUICK)
    shutil.copy(run.model_path, copy.model_path)
    file = copy.path / FILE
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(UserError, match=r"statistics\.safetensors does not contain"):
        calibrate(copy.path, {}, QUICK)


def test_a_file_of_another_network_is_refused(run, tmp_path):
    from safetensors import safe_open

    copy = RunDirectory.load(shutil.copytree(run.path, tmp_path / "copy"))
    with safe_open(copy.path / FILE, "np") as opened:
        metadata = opened.metadata()
    tensors = load_file(copy.path / FILE)
    save_file({**tensors, "means": tensors["means"][:, :3].copy()}, copy.path / FILE, metadata)
    with pytest.raises(UserError, match="does not contain the model of this run: other tensors"):
        calibrate(copy.path, {}, QUICK)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"method": "feddr+"}, "has a frozen head"),
        ({"method": "fedper"}, "the clients of method 'fedper' have models of their own"),
        ({"secure_aggregation": "pairwise"}, "which secure-aggregation and dp-clip are to hide"),
        ({"weights": "uniform", "dp_clip": 1.0}, "which secure-aggregation and dp-clip are to"),
    ],
)
def test_runs_whose_statistics_nobody_could_use_or_may_see_are_refused(changes, reason):
    with pytest.raises(UserError, match=reason):
        parse_config(settings(**{"method": "fedavg", "class_statistics": True, **changes}))
