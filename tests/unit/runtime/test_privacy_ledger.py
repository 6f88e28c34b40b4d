"""A node that limits what its client spends: counted on the node, over runs and repeated rounds."""

import json
import logging
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from in_process import break_client, federate, settings
from PIL import Image

from fedapp import server_app
from fedapp.config.privacy import Budget, spent
from fedapp.core.errors import UserError
from fedapp.core.files import write_atomically
from fedapp.engines.deployment.certificates import make_certificates
from fedapp.engines.in_process import InProcessGrid
from fedapp.results.run_directory import RunDirectory
from fedapp.runtime.node.identity import describe
from strategies.rounds.records import Task
from strategies.rounds.report import RoundFailed

NODES, NOISE, CLASSES = 5, 20.0, ("cat", "dog")
ONE, TWO = (Budget(NOISE, NODES, NODES, 1e-5).epsilon(rounds) for rounds in (1, 2))


def draw(folder, seed):
    """Write four images of each class."""
    random = np.random.default_rng(seed)
    for name in CLASSES:
        (folder / name).mkdir(parents=True)
        for number in range(4):
            pixels = random.integers(0, 256, (32, 32, 3), np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    """Five hosts with a folder of images each, and their signing keys; returns node-configs."""
    folder = tmp_path_factory.mktemp("hosts")
    make_certificates(folder / "keys", ["127.0.0.1"], NODES)
    (folder / "peers").mkdir()
    draw(folder / "server" / "test", NODES)
    for number in range(NODES):
        draw(folder / str(number) / "train", number)
        public = folder / "keys" / f"node-{number}.pub"
        (folder / "peers" / public.name).write_bytes(public.read_bytes())
    return [
        {
            "secure-key": str(folder / "keys" / f"node-{number}"),
            "secure-peers": str(folder / "peers"), "data-dir": str(folder / str(number)),
        }
        for number in range(NODES)
    ]  # fmt: skip


@pytest.fixture
def run(hosts, tmp_path, monkeypatch):
    """The run configuration."""
    monkeypatch.setenv("FEDAPP_STATE", str(tmp_path / "state"))
    server = hosts[0]["data-dir"][:-1] + "server"
    return settings(
        method="fedavg", weights="uniform", participation=1.0, dp_clip=0.01, dp_noise=NOISE,
        secure_aggregation="pairwise", num_clients=NODES, dataset="images", partition="own",
        classes=" ".join(CLASSES), data_dir=server,
    )  # fmt: skip


@pytest.fixture
def limited(hosts, tmp_path):
    """Return a function that gives each of five nodes a ledger and this limit."""

    def configs(epsilon=1e3):
        return [
            {**each, "privacy-epsilon": epsilon, "privacy-ledger": str(tmp_path / f"{number}.json")}
            for number, each in enumerate(hosts)
        ]

    return configs


def ledgers(folder):
    return [json.loads((folder / f"{number}.json").read_text()) for number in range(NODES)]


def serve(run, configs, folder, name):
    """Train by the ServerApp; returns the run's directory."""
    values = {**run, "output-dir": str(folder), "run-name": name}
    grid = InProcessGrid(values, NODES)
    for context, added in zip(grid.contexts.values(), configs, strict=True):
        context.node_config.update(added)
    server_app.run(grid, values, run["data-dir"], 0.0)
    return RunDirectory.load(folder / name)


def test_a_node_counts_the_rounds_of_all_runs(run, limited, tmp_path):
    federate(run, nodes=NODES, node_configs=limited())
    counted = {"epsilon": pytest.approx(TWO), "delta": 1e-5, "rounds": {"20.0": 2}}
    assert ledgers(tmp_path) == [counted] * NODES
    assert (tmp_path / "0.json").stat().st_mode & 0o777 == 0o600
    more = {**run, "num-rounds": 1, "dp-noise": 15.0}
    federate(more, nodes=NODES, node_configs=limited())
    both = spent({20.0: 2, 15.0: 1}, 1e-5)
    expected = {"epsilon": both, "delta": 1e-5, "rounds": {"20.0": 2, "15.0": 1}}
    assert ledgers(tmp_path) == [expected] * NODES
    assert spent({20.0: 3}, 1e-5) < both < spent({15.0: 3}, 1e-5)
    notes = list((tmp_path / "state" / ".secure-steps").iterdir())
    assert len(notes) == 3 * 4 * NODES  # of each round's steps


def test_a_run_ends_before_a_node_would_exceed_its_limit(run, limited, tmp_path, caplog, pictures):
    configs = limited()
    configs[3]["privacy-epsilon"] = TWO + 1e-9
    run = {**run, "num-rounds": 3, "checkpoint-every": 1}
    with pictures():
        summary = serve(run, configs, tmp_path, "one").summary()
    assert (summary["status"], summary["rounds"]) == ("completed", 2)
    assert summary["images_per_second"] is None
    assert summary["reason"] == "a further round would exceed a node's privacy-epsilon"
    assert "and 2 rounds left of it: the run ends after round 2 of 3" in caplog.text
    with pictures():
        resumed = serve({**run, "resume": "auto"}, configs, tmp_path, "one").summary()
    assert (resumed["status"], resumed["rounds"]) == ("completed", 2)
    with pytest.raises(UserError, match=r"round 1 would exceed the limit that node 103 has set"):
        serve(run, configs, tmp_path, "two")
    assert [each["rounds"] for each in ledgers(tmp_path)] == [{"20.0": 2}] * NODES


def test_a_node_at_its_limit_is_left_out_where_failures_are_tolerated(run, limited, tmp_path):
    configs = limited()
    configs[3]["privacy-epsilon"] = ONE + 1e-9
    run = {**run, "tolerate-failures": True}
    for _ in range(2):  # from the start, too
        (failure,) = federate(run, nodes=NODES, node_configs=configs)[1].report.failures
        assert failure.client == 3
        assert failure.reason.startswith("this node's client has spent epsilon")
    assert [each["rounds"]["20.0"] for each in ledgers(tmp_path)] == [4, 4, 4, 1, 4]


def test_a_node_that_counts_sends_nothing_without_masks_and_noise(
    run, limited, tmp_path, monkeypatch
):
    quiet = {**run, "dp-noise": 0.0}
    with pytest.raises(
        UserError, match=r"sends masked sums with noise only .*and the run has none"
    ):
        federate(quiet, nodes=NODES, node_configs=limited())
    # a false server
    monkeypatch.setattr("fedapp.runtime.node.identity._rounds_left", lambda *_: 100)
    with pytest.raises(RoundFailed, match="sends masked sums with noise only"):
        federate(quiet, nodes=NODES, node_configs=limited())
    read = Task.from_record
    for change in ({"separate": True}, {"summed": False}):
        with monkeypatch.context() as patched:
            patched.setattr(Task, "from_record", lambda r, c=change: replace(read(r), **c))
            with pytest.raises(RoundFailed, match="sends masked sums only"):
                federate(run, nodes=NODES, node_configs=limited())
    assert not list(tmp_path.glob("*.json"))


def test_a_node_that_counts_tells_no_accuracy(run, limited, monkeypatch):
    for change in ({"client-eval-every": 1}, {"finetune-epochs": 1}):
        with pytest.raises(UserError, match="accuracies without noise; set client-eval-every"):
            federate({**run, **change}, nodes=NODES, node_configs=limited())
    monkeypatch.setattr("fedapp.runtime.node.identity.check_evaluation", lambda *_: None)
    with pytest.raises(RoundFailed, match="tells accuracies without noise"):
        federate({**run, "client-eval-every": 1}, nodes=NODES, node_configs=limited())


def test_a_node_that_counts_keeps_no_state_that_could_be_lost_unseen(run, limited):
    with pytest.raises(UserError, match="clients of method 'moon' keep a state, which a node"):
        federate({**run, "method": "moon"}, nodes=NODES, node_configs=limited())


def test_a_ledger_or_notes_that_cannot_be_written_are_named_before_round_1(
    run, limited, tmp_path, monkeypatch
):
    configs = limited()
    with monkeypatch.context() as patched:
        patched.setattr("os.access", lambda path, mode: False)
        with pytest.raises(UserError, match=r"node 10. cannot take part: .* cannot be written"):
            federate(run, nodes=NODES, node_configs=configs)
    (tmp_path / "file").touch()
    configs[1]["state-dir"] = str(tmp_path / "file")
    with pytest.raises(UserError, match=r"node 101 .*notes its steps in .*by the node-config key"):
        federate(run, nodes=NODES, node_configs=configs)


@pytest.mark.parametrize(("tolerant", "least", "last"), [(False, 3, 1), (True, 3, 2), (True, 5, 1)])
def test_the_run_ends_when_too_few_nodes_have_rounds_left(
    tolerant, least, last, run, limited, tmp_path, monkeypatch, pictures
):
    """Of five nodes four must stay, or all. One has a round left, and one more has two."""
    configs = limited()
    configs[3]["privacy-epsilon"], configs[4]["privacy-epsilon"] = ONE + 1e-9, TWO + 1e-9
    share = {"secure-threshold": 1.0 if least == 5 else 2 / 3}
    with pictures():
        changes = {**share, "tolerate-failures": tolerant, "num-rounds": 4}
        summary = serve({**run, **changes}, configs, tmp_path, "one").summary()
    assert (summary["status"], summary["rounds"]) == ("completed", last)
    assert summary["reason"] == "a further round would exceed a node's privacy-epsilon"


def test_a_report_does_not_tell_what_has_happened(run, limited, monkeypatch, caplog):
    """Not even that a client has failed, which a server could bring about by its model."""
    good = federate(run, nodes=NODES, node_configs=limited())[1].report
    break_client(monkeypatch, {2}, RuntimeError("a dog"))
    with caplog.at_level(logging.ERROR):
        bad = federate(run, nodes=NODES, node_configs=limited())[1].report
    assert bad.results == good.results
    assert bad.failures == []
    assert "client 2 has no update" in caplog.text
    (line,) = {replace(each, client=0) for each in good.results}
    assert (line.examples, line.images, line.seconds, line.loss, line.steps) == (8, 0, 0.0, 0.0, 0)


def test_the_server_cannot_choose_what_a_client_is(run, limited, tmp_path, monkeypatch):
    """It could divide the node's images among a hundred clients, or name others'."""
    divided = {"partition": "lda", "classes": "", "alpha": 1.0, "num-clients": 12}
    pairs = " ".join(f"{key}={value!r}" for key, value in divided.items())
    node = {**limited()[0], "partition-id": 0, "num-partitions": NODES}
    for change in (divided, {"extension-keys": pairs}):  # as Flower passes further keys
        with pytest.raises(UserError, match="which needs partition 'own': otherwise the server"):
            describe(SimpleNamespace(node_config=node, run_config={**run, **change}))
    read = Task.from_record
    monkeypatch.setattr(Task, "from_record", lambda record: replace(read(record), clients=(1,)))
    with pytest.raises(RoundFailed, match="secure aggregation has 1 nodes left"):
        federate({**run, "tolerate-failures": True}, nodes=NODES, node_configs=limited())
    assert [file.name for file in tmp_path.glob("*.json")] == ["1.json"]


def test_a_node_that_counts_does_not_say_what_is_wrong_with_its_images(
    run, limited, tmp_path, caplog
):
    draw(tmp_path / "broken" / "train", 0)
    (tmp_path / "broken" / "train" / "owl").mkdir()
    configs = limited()
    configs[2]["data-dir"] = str(tmp_path / "broken")
    with pytest.raises(UserError, match="node 102 cannot take part: this node keeps its reasons"):
        federate(run, nodes=NODES, node_configs=configs)
    assert "owl is none of the run's classes" in caplog.text


def test_what_cannot_be_counted_is_not_sent(run, limited, tmp_path, monkeypatch):
    def full(path, content, mode):
        if path.name == "1.json":
            raise OSError(28, "No space left on device")
        write_atomically(path, content, mode)

    monkeypatch.setattr("fedapp.runtime.node.ledger.write_atomically", full)
    tolerant = {**run, "tolerate-failures": True}
    (failure,) = federate(tolerant, nodes=NODES, node_configs=limited())[1].report.failures
    assert failure.client == 1
    assert "cannot be written (No space left on device), and what is not" in failure.reason
    assert not (tmp_path / "1.json").exists()
