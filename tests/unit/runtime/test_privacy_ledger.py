"""A node that limits what its clients spend: counted on the node, over runs and repeated rounds."""

import json
from dataclasses import replace

import pytest
from in_process import federate, settings

from fedapp import server_app
from fedapp.config.privacy import Budget, spent
from fedapp.core.errors import UserError
from fedapp.core.files import write_atomically
from fedapp.engines.deployment.certificates import make_certificates
from fedapp.engines.in_process import InProcessGrid
from fedapp.results.run_directory import RunDirectory
from fedapp.runtime.ledger import Ledger, check_evaluation, check_private
from strategies.rounds.records import Task
from strategies.rounds.report import RoundFailed

pytestmark = pytest.mark.usefixtures("few_images")

NOISE = 20.0
KEYS = {
    "method": "fedavg", "weights": "uniform", "participation": 1.0, "dp_clip": 0.01,
    "dp_noise": NOISE, "secure_aggregation": "pairwise",
}  # fmt: skip
RUN = settings(**KEYS)
ONE, TWO, THREE = (Budget(NOISE, 10, 10, 1e-5).epsilon(rounds) for rounds in (1, 2, 3))
UNUSED = {"secure-peers": "/peers", "privacy-epsilon": 8.0}


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """The signing keys of five nodes, as entries of their node-configs."""
    folder = tmp_path_factory.mktemp("keys") / "federation"
    make_certificates(folder, ["127.0.0.1"], 5)
    peers = folder / "peers"
    peers.mkdir()
    for file in folder.glob("*.pub"):
        (peers / file.name).write_bytes(file.read_bytes())
    return [
        {"secure-key": str(folder / f"node-{number}"), "secure-peers": str(peers)}
        for number in range(5)
    ]


@pytest.fixture
def limited(keys, tmp_path):
    """Return a function that gives each of five nodes a ledger and this limit."""

    def configs(epsilon: float) -> list[dict]:
        return [
            {**each, "privacy-epsilon": epsilon, "privacy-ledger": str(tmp_path / f"{number}.json")}
            for number, each in enumerate(keys)
        ]

    return configs


def ledgers(folder):
    return [json.loads((folder / f"{number}.json").read_text()) for number in range(5)]


def test_a_node_counts_the_rounds_of_all_runs(limited, tmp_path):
    federate(RUN, nodes=5, node_configs=limited(1e3))
    assert ledgers(tmp_path) == [{"epsilon": TWO, "delta": 1e-5, "rounds": {"20.0": 2}}] * 5
    assert (tmp_path / "0.json").stat().st_mode & 0o777 == 0o600
    more = {**RUN, "num-rounds": 1, "dp-noise": 15.0}
    federate(more, nodes=5, node_configs=limited(1e3))
    both = {20.0: 2, 15.0: 1}
    expected = {"epsilon": spent(both, 1e-5), "delta": 1e-5, "rounds": {"20.0": 2, "15.0": 1}}
    assert ledgers(tmp_path) == [expected] * 5
    assert spent({15.0: 1}, 1e-5) < expected["epsilon"] < spent({15.0: 3}, 1e-5)


def test_a_run_ends_before_a_node_would_exceed_its_limit(limited, tmp_path, caplog, pictures):
    values = {**RUN, "num-rounds": 3, "output-dir": str(tmp_path), "run-name": "one"}
    configs = limited(1e3)
    configs[3]["privacy-epsilon"] = TWO
    grid = InProcessGrid(values, 5)
    for context, added in zip(grid.contexts.values(), configs, strict=True):
        context.node_config.update(added)
    with pictures():
        server_app.run(grid, values, "", 0.0)
    summary = RunDirectory.load(tmp_path / "one").summary()
    assert (summary["status"], summary["rounds"]) == ("completed", 2)
    assert summary["reason"] == "a further round would exceed a node's privacy-epsilon"
    assert "allows it 2 rounds: the run ends after round 2 of 3" in caplog.text
    with pytest.raises(UserError, match=r"have spent epsilon .* a further round with dp-noise 20"):
        federate(RUN, nodes=5, node_configs=configs)
    assert [each["rounds"] for each in ledgers(tmp_path)] == [{"20.0": 2}] * 5


def test_a_node_at_its_limit_is_left_out_where_failures_are_tolerated(limited, tmp_path):
    """And it counts a round that is repeated as another one, whatever the server says."""
    configs = limited(1e3)
    configs[3]["privacy-epsilon"] = TWO
    run = {**RUN, "tolerate-failures": True, "num-rounds": 3}
    failures = federate(run, nodes=5, node_configs=configs)[1].report.failures
    assert {each.client for each in failures} == {3, 8}
    assert "have spent epsilon" in failures[0].reason
    assert [each["rounds"]["20.0"] for each in ledgers(tmp_path)] == [3, 3, 3, 2, 3]


def test_a_node_that_counts_sends_nothing_without_noise(limited, tmp_path, monkeypatch):
    quiet = {**RUN, "dp-noise": 0.0}
    with pytest.raises(UserError, match=r"sends sums with noise only .*and the run has none"):
        federate(quiet, nodes=5, node_configs=limited(1e3))
    monkeypatch.setattr("fedapp.runtime.identity._rounds_left", lambda *_: 100)  # a false server
    with pytest.raises(RoundFailed, match="sends sums with noise only"):
        federate(quiet, nodes=5, node_configs=limited(1e3))
    read = Task.from_record
    for change in ({"separate": True}, {"summed": False}):
        with monkeypatch.context() as patched:
            patched.setattr(Task, "from_record", lambda r, c=change: replace(read(r), **c))
            with pytest.raises(RoundFailed, match="sends masked sums only"):
                federate(RUN, nodes=5, node_configs=limited(1e3))
    assert not list(tmp_path.glob("*.json"))


def test_a_node_that_counts_tells_no_accuracy(limited, monkeypatch):
    evaluated = {**RUN, "client-eval-every": 1}
    with pytest.raises(UserError, match=r"tells accuracies without noise; set client-eval-every"):
        federate(evaluated, nodes=5, node_configs=limited(1e3))
    with pytest.raises(UserError, match="tells accuracies without noise"):
        federate({**RUN, "method": "fedper"}, nodes=5, node_configs=limited(1e3))
    monkeypatch.setattr("fedapp.runtime.identity.evaluation_on_clients", lambda *_: 0)
    with pytest.raises(RoundFailed, match="tells accuracies without noise"):
        federate(evaluated, nodes=5, node_configs=limited(1e3))


def test_what_cannot_be_counted_is_not_sent(limited, tmp_path, monkeypatch):
    def full(path, content, mode):
        if path.name == "1.json":
            raise OSError(28, "No space left on device")
        write_atomically(path, content, mode)

    monkeypatch.setattr("fedapp.runtime.ledger.write_atomically", full)
    run = {**RUN, "tolerate-failures": True}
    strategy = federate(run, nodes=5, node_configs=limited(1e3))[1]
    assert {each.client for each in strategy.report.failures} == {1, 6}
    reason = strategy.report.failures[0].reason
    assert "cannot be written (No space left on device), and what is not counted is not" in reason
    assert not (tmp_path / "1.json").exists()


def test_the_rounds_that_are_left(tmp_path):
    ledger = Ledger(tmp_path / "one.json", THREE, 1e-5)
    assert [ledger.rounds_left(NOISE, most) for most in (0, 2, 3, 100)] == [0, 2, 3, 3]
    ledger.charge(NOISE)
    assert [ledger.rounds_left(NOISE, most) for most in (1, 2, 100)] == [1, 2, 2]
    assert ledger.rounds_left(NOISE / 10, 100) == 0
    before = ledger.file.read_bytes()
    with pytest.raises(UserError, match=rf"have spent epsilon {ONE:.3g} of their 0\.68"):
        ledger.charge(NOISE / 10)
    assert ledger.file.read_bytes() == before


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"rounds": {"x": 1}}', '{"rounds": {"1": 0.5}}', '{"rounds": {"0": 1}}'],
)
def test_a_damaged_ledger_is_not_taken_for_an_empty_one(text, tmp_path):
    file = tmp_path / "one.json"
    file.write_text(text)
    with pytest.raises(UserError, match=f"{file} is not as a node writes it; restore it"):
        Ledger(file, 8.0, 1e-5).charge(NOISE)
    assert file.read_text() == text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "'privacy-epsilon' alone; .* needs both"),
        ({"privacy-ledger": "one.json"}, "'privacy-ledger' is 'one.json' but must be a whole path"),
        ({"privacy-ledger": "/one", "privacy-epsilon": 0}, "is 0 but must be above 0"),
        ({"privacy-ledger": "/one", "privacy-epsilon": "8"}, "is '8' but must be above 0"),
        ({"privacy-ledger": "/one", "privacy-delta": 1.0}, "must be above 0 and below 1"),
    ],
)
def test_mistakes_in_the_node_config_are_named(changes, words):
    with pytest.raises(UserError, match=words):
        Ledger.of({**UNUSED, **changes})


def test_a_ledger_needs_signed_keys_and_delta_a_ledger():
    with pytest.raises(UserError, match="without 'secure-key' and 'secure-peers'"):
        Ledger.of({"privacy-epsilon": 8.0, "privacy-ledger": "/one"})
    with pytest.raises(UserError, match="'privacy-delta' without 'privacy-epsilon'"):
        Ledger.of({"privacy-delta": 1e-6})
    assert check_private({}, None) is None
    check_evaluation({})
    assert Ledger.of({**UNUSED, "privacy-ledger": "/one"}).delta == 1e-5
