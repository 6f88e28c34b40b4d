"""The states that clients keep between rounds, for every method that keeps one.

A state must survive a round trip through its file, another process, and rounds without the client.
A run resumed from a checkpoint must give the bits of a run that was never interrupted.
"""

import uuid
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Error, Message, MessageType
from heterogeneous_runs import HETEROGENEOUS
from heterogeneous_runs import run as personal_run
from in_process import ROOT, assert_same, differ, federate, settings, work

from clients.state.listing import UnknownRun
from clients.state.store import ClientState, StateError
from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError
from fedapp.core.rng import sample_clients
from fedapp.engines.in_process import InProcessGrid, run_in_process
from fedapp.engines.resources import Resources
from fedapp.methods.table import METHODS, kept_by_clients
from fedapp.results.formatting import megabytes
from fedapp.results.run_directory import RunDirectory
from fedapp.runtime.process import context as process_module
from fedapp.runtime.process.context import ProcessContext
from fedapp.runtime.server.preflight import forget, wait_for_nodes
from fedapp.runtime.server.strategy import build_strategy
from strategies.rounds.federation import Federation
from strategies.rounds.records import from_array_record, to_array_record
from strategies.rounds.report import RoundFailed
from strategies.secure.messages import SECURE
from strategies.secure.node import SecureNode

pytestmark = pytest.mark.usefixtures("few_images")

KEEPS = [
    {"method": name}
    for name, row in METHODS.items()
    if kept_by_clients({"method": name}) and not row.heterogeneous
]
KEEPS += [
    {"method": "fednova", "fednova_correction": "own"},
    {"method": "fedcurv", "fedcurv_accumulate": True},
]
SENDS = [keys for keys in KEEPS if not keys["method"].startswith(("centralised", "local"))]
STATEFUL = [pytest.param(keys, id="-".join(map(str, keys.values()))) for keys in KEEPS]


def watched(config):
    """Return the client that these tests use: 3, or the only one."""
    return min(3, config.num_clients - 1)


def trained_client(process, server_round, accepted=0, remember=True):
    """Let a client train one round from the initial model, as a ClientApp does."""
    number = watched(process.config)
    client = process.client(number, process.memory(number, "run", server_round, accepted))
    update = work(client, server_round, 0.05)
    if remember:
        client.save_state(update)
    return client, update


def recalled(config, server_round, accepted):
    """Return that client's state as a new process loads it at the start of `server_round`."""
    process, number = ProcessContext(config), watched(config)
    return process.memory(number, "run", server_round, accepted).load()


@pytest.mark.parametrize("method", STATEFUL)
def test_states_survive_a_file_another_process_and_rounds_without_the_client(method):
    config = parse_config(settings(**method, lr=0.05))
    first, update = trained_client(ProcessContext(config), 1)
    stored = recalled(config, 2, accepted=1)
    assert sum(array.nbytes for array in stored.values()) == first.state_bytes() > 0
    for name, array in update.state.items():
        np.testing.assert_array_equal(stored[name], array)
    assert_same(stored, recalled(config, 7, accepted=1))
    trained_client(ProcessContext(config), 7, accepted=1)
    second = recalled(config, 8, accepted=7)
    assert differ(stored, second)
    trained_client(ProcessContext(config), 7, accepted=1)  # again, from round 1's state
    assert_same(second, recalled(config, 8, accepted=7))


@pytest.mark.parametrize("method", STATEFUL)
def test_a_lost_state_is_an_error_or_a_fresh_start_as_asked(method):
    run = settings(**method, lr=0.05)
    with pytest.raises(StateError, match="has trained before in this run but its state is gone"):
        trained_client(ProcessContext(parse_config(run)), 4, accepted=3, remember=False)
    fresh = ProcessContext(parse_config({**run, "state-missing": "reinit"}))
    assert not trained_client(fresh, 3, remember=False)[1].reinitialised
    assert trained_client(fresh, 4, accepted=3)[1].reinitialised
    assert not trained_client(fresh, 5, accepted=4)[1].reinitialised


def test_clients_that_start_afresh_are_named_in_the_rounds_metrics(tmp_path, monkeypatch, capsys):
    run = settings(method="scaffold", participation=1.0, state_missing="reinit",
                   output_dir=str(tmp_path), run_name="lost")  # fmt: skip
    monkeypatch.setattr(ClientState, "load", lambda state, *rounds: None)
    assert run_in_process(ROOT, run, Resources()) == 0
    first, second = RunDirectory.load(tmp_path / "lost").rounds()
    assert "reinitialised" not in first
    assert second["reinitialised"] == list(range(10))
    assert capsys.readouterr().out.count("started afresh 10") == 1


def test_fedcurv_starts_no_client_afresh(monkeypatch):
    """The sums that a client gets contain its own part, which it has to subtract."""
    run = settings(method="fedcurv", participation=1.0, state_missing="reinit")
    federate(run)
    monkeypatch.setattr(ClientState, "load", lambda state, *rounds: None)
    with pytest.raises(RoundFailed, match=r"in round 2: .*importances, which are lost here"):
        federate(run)


def test_a_state_of_the_same_classes_in_another_order_is_refused():
    config = parse_config(settings(method="scaffold", lr=0.05))
    trained_client(ProcessContext(config), 1)
    other = ProcessContext(config)
    other.data.dataset = replace(other.data.dataset, classes=other.data.dataset.classes[::-1])
    with pytest.raises(StateError, match=r"has classes '10 \(\w+\)', but this run has '10 \("):
        other.memory(3, "run", 2, accepted=1).load()


def resumed(run, rounds, more, nodes=3):
    """Train `rounds` rounds, then `more` rounds with new nodes and a restored strategy."""
    config, key = parse_config(run), uuid.uuid4().hex

    def part(first_round, last_round, arrays, saved):
        process_module.close_process()
        process = ProcessContext(config)
        grid = InProcessGrid(run, nodes)
        federation = wait_for_nodes(grid, config.num_clients, {}, 5)
        strategy = build_strategy(config, process, federation, key)
        if saved is not None:
            strategy.restore(saved)
        arrays = arrays or {n: t.detach().numpy() for n, t in process.slot.shared.items()}
        result = strategy.start(
            grid, to_array_record(arrays), last_round, 60, first_round=first_round
        )
        return from_array_record(result.arrays), strategy.save()

    arrays, saved = part(1, rounds, None, None)
    return part(rounds + 1, rounds + more, arrays, saved)[0]


@pytest.mark.parametrize("method", STATEFUL)
def test_a_resumed_run_gives_the_bits_of_an_uninterrupted_one(method):
    run = settings(**method, lr=0.05, lr_schedule="constant", num_rounds=3)
    cohorts = [set(sample_clients(0, r, 10, 0.5)) for r in (1, 2, 3)]
    assert cohorts[0] & cohorts[2]  # some state of the first part matters in the second
    assert cohorts[0] - cohorts[1]  # and some client missed a round
    whole = federate(run)[0]
    assert_same(whole, resumed(run, 2, 1))
    assert_same(whole, resumed(run, 1, 2, nodes=10))


@pytest.mark.parametrize("keys", [*SENDS, *HETEROGENEOUS], ids=str)
def test_a_training_whose_reply_was_lost_leaves_no_trace(keys, monkeypatch):
    """The client's state must belong to what the server has, which knows nothing of this training.

    Otherwise a control variate is no longer part of the server's mean, for example.
    """
    own = personal_run(method=keys) if isinstance(keys, str) else settings(**keys)
    run = {**own, "lr": 0.05, "num-rounds": 4, "participation": 1.0, "tolerate-failures": True}
    answer, lost = InProcessGrid.answer, []

    def outcome(trains):
        def answers(grid, message):
            about = message.metadata
            if about.message_type != MessageType.TRAIN or about.dst_node_id != max(grid.contexts):
                return answer(grid, message)
            if message.content["task"]["server_round"] not in (2, 3):
                return answer(grid, message)
            lost.append(answer(grid, message) if trains else None)
            return Message(Error(1, "lost on its way"), reply_to=message)

        monkeypatch.setattr(InProcessGrid, "answer", answers)
        final, strategy, _ = federate(run)
        return dict(sorted({**final, **strategy.save()}.items()))

    assert_same(outcome(trains=True), outcome(trains=False))
    assert len(lost) == 4
    assert not any(reply.has_error() for reply in lost[:2])


@pytest.mark.parametrize("method", STATEFUL)
def test_a_diverging_run_ends_with_the_name_of_the_round(method):
    run = settings(**method, lr=1e9, batch_size="auto")
    cohort_size = len(sample_clients(0, 1, parse_config(run).num_clients, 0.5))
    with pytest.raises(
        RoundFailed, match=f"round 1 has 0 usable updates of {cohort_size} and needs 1"
    ):
        federate(run)


@pytest.mark.parametrize("method", STATEFUL)
def test_checkpoints_that_states_cannot_follow_are_refused(method):
    parse_config(settings(**method, checkpoint_every=1))
    with pytest.raises(UserError, match=r"'checkpoint-every' is 5, .* keep state .* set it to 1"):
        parse_config(settings(**method, checkpoint_every=5))


def test_the_disk_space_of_states_is_logged_at_the_start(tmp_path, capsys):
    run = settings(method="scaffold", num_rounds=1, output_dir=str(tmp_path), run_name="kept",
                   keep_state=True)  # fmt: skip
    assert run_in_process(ROOT, run, Resources()) == 0
    size = 2 * 10 * ProcessContext(parse_config(run)).client(0).state_bytes()
    text = capsys.readouterr().out
    assert f"clients keep: c_i; up to {megabytes(size)} in " in text
    assert "of their host, or in their node's state-dir" in text


def test_an_update_that_is_refused_leaves_the_state_as_it_was(monkeypatch):
    """A control variate updated with a model that the server refused would bias later rounds."""
    run = settings(method="scaffold", num_rounds=2, participation=1.0, lr=0.05)
    original = ProcessContext.client

    def wild(self, client, *more):
        built = original(self, client, *more)
        if client == 4:
            finish = built.finish

            def far_away(received, update, lr):
                finish(received, update, lr)
                update.shared = {n: a * np.float32(1e6) for n, a in update.shared.items()}

            built.finish = far_away
        return built

    monkeypatch.setattr(ProcessContext, "client", wild)
    _, strategy, _ = federate(run, state_key="run")
    assert [failure.client for failure in strategy.report.failures] == [4]
    process = ProcessContext(parse_config(run))
    assert process.memory(4, "run", 3, accepted=0).load() is None
    assert process.memory(5, "run", 3, accepted=2).load() is not None


@pytest.mark.parametrize(
    ("problem", "warning"),
    [
        (StateError("states/0 cannot be cleaned: denied"), "run: states/0 cannot be cleaned"),
        (RuntimeError("a bug"), "run: RuntimeError('a bug')"),
        (UnknownRun("there is no run"), ""),
    ],
)
def test_states_that_a_node_could_not_remove_are_logged(
    tmp_path, monkeypatch, capsys, problem, warning
):
    def refuse(*arguments):
        raise problem

    monkeypatch.setattr("fedapp.runtime.node.queries.clean", refuse)
    run = settings(method="scaffold", num_rounds=1, output_dir=str(tmp_path), run_name="one")
    assert run_in_process(ROOT, run, Resources()) == 0
    text = capsys.readouterr().out
    assert warning in text
    assert ("has not removed what it keeps of the run" in text) == bool(warning)


def test_nodes_that_do_not_answer_at_the_end_are_counted(monkeypatch, capsys):
    values = settings(method="scaffold")
    grid = InProcessGrid(values, 3)
    monkeypatch.setattr(grid, "pull_messages", lambda ids: [])
    federation = Federation({client: 100 + client % 3 for client in range(10)}, {})
    forget(grid, federation, "run", 0.05)
    expected = "nodes that have not said in time whether they removed what they keep of the run: 3"
    assert capsys.readouterr().out == f"{expected}\n"


def test_secrets_of_an_unfinished_round_are_deleted_at_the_end_of_the_run():
    grid = InProcessGrid(settings(method="scaffold", secure_aggregation="pairwise"), 3)
    for context in grid.contexts.values():
        SecureNode(context.state, 0.7).advertise({"session": b"s" * 16, "party": 1})
    assert all(SECURE in context.state for context in grid.contexts.values())
    forget(grid, Federation({client: 100 + client % 3 for client in range(10)}, {}), "run", 5)
    assert not any(SECURE in context.state for context in grid.contexts.values())
