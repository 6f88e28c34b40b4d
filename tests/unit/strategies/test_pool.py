"""Nodes that can host any client: they share a round's work, and replace one another."""

from dataclasses import replace

from in_process import ShuffledGrid, settings

from fedapp.config.resolve import parse_config
from fedapp.runtime.process.context import ProcessContext
from fedapp.runtime.server.preflight import wait_for_nodes
from fedapp.runtime.server.strategy import build_strategy
from strategies.rounds.federation import Federation
from strategies.rounds.records import ClientResult, to_array_record


def test_a_pool_of_nodes_shares_examples_evenly():
    examples = {0: 100, 1: 10, 2: 60, 3: 40, 4: 0}
    federation = Federation(dict.fromkeys(examples, 7), examples, pool=[7, 9])
    assert federation.by_node([4, 3, 2, 1, 0]) == {7: [0, 1], 9: [2, 3, 4]}
    assert federation.by_node([3]) == {7: [3]}


def test_a_lost_node_of_a_pool_gets_no_clients_until_it_is_back():
    examples = dict.fromkeys(range(4), 10)
    federation = Federation(dict.fromkeys(examples, 7), examples, pool=[7, 9])
    federation.set_connected([9, 11])
    assert federation.by_node([0, 1, 2, 3]) == {9: [0, 1, 2, 3]}
    federation.set_connected([9, 7])
    assert federation.by_node([0, 1, 2, 3]) == {7: [0, 2], 9: [1, 3]}
    assert federation.place(3) == ""
    named = replace(federation, names={7: "node 7", 9: "node 9"})
    assert [named.place(client) for client in range(5)] == [" on node 7", " on node 9"] * 2 + [""]
    federation.set_connected([])  # nobody: the errors of the messages say so
    assert federation.by_node([0, 1]) == {7: [0], 9: [1]}


def pool_of_two(kind, config):
    """Return the process, the strategy and the grid of a run on two nodes that host any client."""
    grid = kind(config, 2)
    for context in grid.contexts.values():
        context.node_config["hosts"] = "any"
    parsed = parse_config(config)
    process = ProcessContext(parsed)
    return process, build_strategy(parsed, process, wait_for_nodes(grid, 10, {}, 5), ""), grid


def start_of(process):
    return to_array_record({n: t.detach().numpy() for n, t in process.slot.shared.items()})


def test_the_nodes_of_a_pool_that_are_left_train_all_clients():
    """A node is lost between two rounds, and no client with it."""
    config = settings(method="fedavg", num_rounds=3, tolerate_failures=True)
    asked = []

    class Losing(ShuffledGrid):
        def get_node_ids(self):
            asked.append(super().get_node_ids())
            return [node for node in asked[-1] if node != 101 or len(asked) < 3]

    reports = []
    process, strategy, grid = pool_of_two(Losing, config)

    def note(server_round, arrays):
        reports.append((len(strategy.report.results), set(strategy._tasks_sent)))

    strategy.start(grid, start_of(process), 3, 60, evaluate_fn=note)
    assert [trained for trained, _ in reports] == [reports[0][0]] * 3
    assert reports[-1][1] == {100}


def test_a_node_that_is_lost_in_training_evaluates_no_client():
    config = settings(method="fedavg", num_rounds=1, client_eval_every=1, tolerate_failures=True)
    asked = []

    class Losing(ShuffledGrid):
        def get_node_ids(self):
            asked.append(super().get_node_ids())
            return [node for node in asked[-1] if node != 101 or len(asked) < 3]

    process, strategy, grid = pool_of_two(Losing, config)
    strategy.start(grid, start_of(process), 1, 60, evaluate_fn=lambda *_: None)
    assert len(strategy.report.scores) == 10
    assert strategy.report.unevaluated == []


def test_a_pool_shares_the_work_of_different_architectures_evenly():
    names = {client: ("small", "large")[client % 2] for client in range(8)}
    examples = dict.fromkeys(names, 10)
    federation = Federation(dict.fromkeys(names, 7), examples, [7, 9], names)
    assert federation.by_node(list(range(8))) == {7: [0, 2, 4, 6], 9: [1, 3, 5, 7]}
    seconds = {"small": 2.0, "large": 8.0}
    results = [ClientResult(c, 10, 1, 0.0, seconds[names[c]], 0, 0.0, images=20) for c in names]
    federation.learn_pace(results)
    federation.learn_pace([replace(result, seconds=9.0) for result in results])  # a busy machine
    assert federation.by_node(list(range(8))) == {7: [0, 1, 4, 5], 9: [2, 3, 6, 7]}
    assert federation.by_node([1, 0, 2, 4, 6]) == {7: [1], 9: [0, 2, 4, 6]}


def test_with_equal_architectures_measured_seconds_move_no_client():
    federation = Federation(dict.fromkeys(range(4), 7), dict.fromkeys(range(4), 10), [7, 9])
    before = federation.by_node([0, 1, 2, 3])
    federation.learn_pace(
        [ClientResult(c, 10, 1, 0.0, 1.0 + c, 0, 0.0, images=20) for c in range(4)]
    )
    assert federation.by_node([0, 1, 2, 3]) == before
