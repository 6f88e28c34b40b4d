"""A run interrupted at any point: its rows, summary, model and state are of one round."""

import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from in_process import assert_same, settings
from safetensors.numpy import load_file

from fedapp import server_app
from fedapp.core.errors import UserError
from fedapp.engines.in_process import InProcessGrid
from fedapp.results.run_directory import RunDirectory
from fedapp.runtime.callbacks import standard as callbacks
from fedapp.runtime.callbacks.checkpoints import Checkpoints
from strategies.rounds import base, interruption
from strategies.rounds.base import ClientStrategy
from strategies.rounds.interruption import ask_to_stop
from strategies.rounds.report import RoundDiverged
from strategies.secure.messages import UNMASK
from strategies.secure.server import SecureSession

pytestmark = pytest.mark.usefixtures("few_images")

KEYS = {
    "num_clients": 4, "shards": 5, "participation": 1.0, "lr_schedule": "constant",
    "client_eval_every": 1,
}  # fmt: skip
METHODS = ["fedavg", "fedexp", "feddor", "fedgh"]  # the last three have a state that is saved


@pytest.fixture(autouse=True)
def handled():
    """SIGINT raises KeyboardInterrupt, also where the tests run in the background of a shell."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def train(tmp_path):
    """Return a function that trains a run and returns its directory."""

    def run(name, nodes=1, **changes) -> RunDirectory:
        values = settings(output_dir=str(tmp_path), run_name=name, **KEYS, **changes)
        server_app.run(InProcessGrid(values, nodes), values, "", 0.0)
        return RunDirectory.load(tmp_path / name)

    return run


def at_round_2(monkeypatch, owner, name, act, after=False):
    """Let a method of a callback or strategy call `act` in round 2: first, or at its end."""
    method = getattr(owner, name)

    def acting(self, *args, **kwargs):
        strategy = self if isinstance(self, ClientStrategy) else args[0].strategy
        if strategy.server_round == 2 and not after:
            act()
        result = method(self, *args, **kwargs)
        if strategy.server_round == 2 and after:
            act()
        return result

    monkeypatch.setattr(owner, name, acting)


def interrupt():
    """Act as Ctrl-C."""
    signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("owner", "name", "after", "rounds"),
    [
        (ClientStrategy, "configure_train", True, 1),
        (ClientStrategy, "configure_evaluate", False, 2),
        (ClientStrategy, "aggregate_evaluate", True, 2),
        (callbacks.Evaluate, "round_ends", False, 2),
        (callbacks.RoundTimer, "round_ends", True, 2),
        (callbacks.MetricsFile, "round_ends", True, 2),
        (callbacks.Console, "round_ends", True, 2),
    ],
)
def test_what_is_left_is_of_one_round(train, monkeypatch, method, owner, name, after, rounds):
    whole = train("whole", method=method, num_rounds=rounds)
    at_round_2(monkeypatch, owner, name, interrupt, after)
    with pytest.raises(KeyboardInterrupt):
        train("cut", method=method, num_rounds=3)
    check_same_round(RunDirectory.load(whole.path.parent / "cut"), whole)


@pytest.mark.parametrize("method", ["fedavg", "fedexp"])
def test_a_resumed_run_repeats_no_finished_round(train, monkeypatch, method):
    """The checkpoint of round 1 is not due; the interruption saves it."""
    whole = train("whole", method=method, num_rounds=3)
    keys = {"method": method, "num_rounds": 3, "checkpoint_every": 100}
    with monkeypatch.context() as patch:
        at_round_2(patch, ClientStrategy, "configure_train", interrupt, after=True)
        with pytest.raises(KeyboardInterrupt):
            train("cut", **keys)
    cut = RunDirectory.load(whole.path.parent / "cut")
    assert [path.name for path in cut.checkpoints.iterdir()] == ["round-000001.safetensors"]
    before = cut.metrics_path.read_bytes()
    train("cut", **keys, resume="auto")
    assert cut.metrics_path.read_bytes().startswith(before)
    model = "model.safetensors"
    assert_same(load_file(cut.path / model), load_file(whole.path / model))


@pytest.mark.parametrize(
    ("owner", "name", "after"),
    [
        (ClientStrategy, "configure_evaluate", False),
        (callbacks.Console, "round_ends", True),
        (Checkpoints, "_write", False),
    ],
)
@pytest.mark.parametrize("method", ["fedavg", "fedexp"])
def test_a_round_that_is_not_finished_is_repeated(train, monkeypatch, method, owner, name, after):
    """The state is that of round 2 already, and the checkpoint that of round 1."""
    keys = {"method": method, "num_rounds": 3, "checkpoint_every": 1}
    whole = train("whole", **keys)
    with monkeypatch.context() as patch:
        at_round_2(patch, owner, name, interrupt, after)
        with pytest.raises(KeyboardInterrupt):
            train("cut", **keys)
    cut = RunDirectory.load(whole.path.parent / "cut")
    assert [path.name for path in cut.checkpoints.iterdir()] == ["round-000001.safetensors"]
    train("cut", **keys, resume="auto")
    assert [row["accuracy"] for row in cut.rounds()] == [row["accuracy"] for row in whole.rounds()]
    model = "model.safetensors"
    assert_same(load_file(cut.path / model), load_file(whole.path / model))


def test_a_state_between_two_rounds_gets_no_checkpoint(train, monkeypatch, tmp_path):
    """A second Ctrl-C, while the server computes the new state, acts at once."""

    def interrupted_twice():
        interrupt()
        interrupt()

    at_round_2(monkeypatch, ClientStrategy, "_next_arrays", interrupted_twice, after=True)
    with pytest.raises(KeyboardInterrupt):
        train("cut", method="fedexp", num_rounds=3, checkpoint_every=100)
    files = (tmp_path / "cut" / "checkpoints").iterdir()
    assert [path.name for path in files] == ["round-000001.safetensors"]


def test_a_round_that_fails_loses_none_before_it(train, monkeypatch, tmp_path):
    def fail(arrays, server_round):
        if server_round == 2:
            raise RoundDiverged("not finite")

    monkeypatch.setattr(base, "check_finite", fail)
    with pytest.raises(UserError, match="not finite"):
        train("cut", method="fedexp", num_rounds=3, checkpoint_every=100)
    files = (tmp_path / "cut" / "checkpoints").iterdir()
    assert [path.name for path in files] == ["round-000001.safetensors"]


@pytest.mark.parametrize(("name", "rounds"), [("configure_train", 1), ("configure_evaluate", 2)])
def test_a_server_in_another_thread_stops_when_it_next_waits(train, monkeypatch, name, rounds):
    whole = train("whole", method="fedexp", num_rounds=rounds)
    monkeypatch.setattr(interruption, "_asked_to_stop", threading.Event())
    answers = []
    at_round_2(monkeypatch, ClientStrategy, name, lambda: answers.append(ask_to_stop()), after=True)
    other = ThreadPoolExecutor(1).submit(train, "cut", method="fedexp", num_rounds=3)
    with pytest.raises(KeyboardInterrupt):
        other.result()
    assert answers == [True]
    assert not ask_to_stop()  # a second signal does not wait again
    check_same_round(RunDirectory.load(whole.path.parent / "cut"), whole)


@pytest.mark.parametrize("method", METHODS)
def test_the_server_ends_its_step_first(train, monkeypatch, method):
    whole = train("whole", method=method, num_rounds=2)
    check = base.check_finite

    def interrupted(arrays, server_round):
        if server_round == 2:
            interrupt()  # after the new state and before the new model
        check(arrays, server_round)

    monkeypatch.setattr(base, "check_finite", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train("cut", method=method, num_rounds=3)
    check_same_round(RunDirectory.load(whole.path.parent / "cut"), whole)


def test_secure_aggregation_does_not_wait_for_its_nodes_after_an_interruption(train, monkeypatch):
    """Ctrl-C while the nodes are asked for their shares in round 2: the round is left out."""
    secure = {"method": "fedavg", "secure_aggregation": "pairwise", "nodes": 4}
    whole = train("whole", num_rounds=1, **secure)
    ask, asked = SecureSession._ask, []

    def interrupted(self, kind, *arguments):
        asked.append(kind)
        if asked.count(UNMASK) == 2:
            interrupt()
        return ask(self, kind, *arguments)

    monkeypatch.setattr(SecureSession, "_ask", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train("cut", num_rounds=3, **secure)
    assert asked[-1] == UNMASK
    check_same_round(RunDirectory.load(whole.path.parent / "cut"), whole)


def check_same_round(cut, whole):
    """Check that an interrupted run has what a run of as many rounds has."""
    rounds = whole.summary()["rounds"]
    assert cut.summary()["status"] == "interrupted"
    assert cut.summary()["rounds"] == rounds
    assert [row["round"] for row in cut.rounds()] == list(range(1, rounds + 1))
    for row, expected in zip(cut.rounds(), whole.rounds(), strict=True):
        assert row["train_loss"] == expected["train_loss"]
        assert row["accuracy"] in (expected["accuracy"], None)
        assert row["seconds"] > 0
    model = "model.safetensors"
    assert_same(load_file(cut.path / model), load_file(whole.path / model))


def test_a_round_is_not_written_twice(train, monkeypatch, tmp_path):
    log = RunDirectory.log_round

    def interrupted(self, *rows):
        log(self, *rows)
        interrupt()

    monkeypatch.setattr(RunDirectory, "log_round", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train("cut", method="fedavg", num_rounds=3)
    cut = RunDirectory.load(tmp_path / "cut")
    assert [row["round"] for row in cut.rounds()] == [1]
    assert cut.summary()["rounds"] == 1
