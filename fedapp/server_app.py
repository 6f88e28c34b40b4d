"""The ServerApp: from a run configuration to a trained model and a run directory.

It reads the configuration, meets the nodes, builds the method's strategy from the table and lets it
run its rounds; `Recorder` writes down what happens. A mistake in the configuration ends the run
with one sentence, before anything is trained.
"""

import sys
import time
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from clients.arrays import to_arrays
from fedapp.config import RunConfig
from fedapp.errors import UserError, out_of_memory
from fedapp.identity import form
from fedapp.method import GLOBAL
from fedapp.node import Node
from fedapp.opening import check_name, opened_run
from fedapp.preflight import forget, meet_nodes
from fedapp.recorder import Recorder
from fedapp.results.checkpoint import Checkpoint
from fedapp.results.run_directory import RunDirectory
from fedapp.rng import sample_clients
from strategies.federation import Federation, RoundDiverged, RoundFailed
from strategies.records import to_array_record
from strategies.robust import Rule
from strategies.rounds import ClientStrategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run one federated training; raises UserError, without a traceback, when it cannot."""
    started = time.monotonic()
    try:
        data_dir = str(context.node_config.get("data-dir", ""))
        run(grid, context.run_config, data_dir, started)
    except UserError as mistake:
        sys.tracebacklimit = 0  # Flower logs what we raise: let that be the sentence alone
        raise UserError(f"fedapp: {mistake}") from None


def run(grid: Grid, run_config: Mapping[str, Any], data_dir: str, started: float) -> None:
    """Train, and leave a finished run directory behind, also when the rounds end early."""
    config = RunConfig.parse(run_config)
    check_name(config)
    try:
        node = Node(config, data_dir)  # before the directory: data that are not there leave none
        for note in node.partition.notes:
            print(f"partition: {note}")
        with (
            opened_run(config, run_config) as (directory, saved),
            closing(Recorder(directory, config, node, started)) as recorder,
        ):
            _train(grid, recorder, saved)
    except torch.OutOfMemoryError as error:
        raise UserError(f"the server: {out_of_memory(error)}") from None


def _train(grid: Grid, recorder: Recorder, saved: Checkpoint | None) -> None:
    """Meet the nodes and run the rounds that are left."""
    config, node = recorder.config, recorder.node
    expected = {"configuration": config.fingerprint(), "head": node.head_hash(), **form(node)}
    federation = meet_nodes(grid, config.num_clients, expected, config.round_timeout)
    state_key = _state_key(grid, federation, recorder, saved)
    strategy = build_strategy(config, node, federation, state_key)
    arrays, first_round = _starting_point(node, strategy, recorder.run, saved)
    recorder.begin(strategy, first_round, arrays)
    try:
        strategy.start(
            grid,
            arrays,
            config.num_rounds,
            config.round_timeout,
            evaluate_fn=recorder.end_of_round,
            first_round=first_round,
        )
        recorder.check_last()
    except RoundFailed as reason:
        recorder.finish("failed", str(reason), diverged=isinstance(reason, RoundDiverged))
        raise UserError(str(reason)) from None
    except BaseException as error:  # Ctrl-C too: what was trained until then is kept
        recorder.finish("interrupted", repr(error))
        raise
    recorder.finish("completed")
    if strategy.state_key and not config.keep_state:  # last, for it may be interrupted
        forget(grid, federation, strategy.state_key)


def _state_key(
    grid: Grid, federation: Federation, recorder: Recorder, saved: Checkpoint | None
) -> str:
    """Return the name of the clients' states: the resumed run's, or a new one from round 1 on.

    What an attempt that is given up has left is removed: its clients have trained later rounds.
    """
    run, config = recorder.run, recorder.config
    if saved is not None:
        return run.state_key()
    old = run.earlier_state_key()
    if old and recorder.node.keeps and not config.keep_state:
        forget(grid, federation, old)
    return run.new_state_key()


def build_strategy(
    config: RunConfig, node: Node, federation: Federation, state_key: str = ""
) -> ClientStrategy:
    """Build the strategy that the method table names; clients store states under `state_key`."""
    every = config.eval_every if node.method.accuracy != GLOBAL else 0
    every = config.num_rounds if config.finetune_epochs else every  # a stage after the last round
    values = config.flat()
    return node.method.strategy(
        federation,
        cohort=lambda r: sample_clients(config.seed, r, config.num_clients, config.participation),
        lr=config.lr_at,
        trained=[n for n, t in node.workplace.shared.items() if t.requires_grad],
        weights=config.weights,
        min_replies=config.min_replies,
        tolerate_failures=config.tolerate_failures,
        client_evaluation_every=config.client_eval_every or every,
        state_key=state_key if node.keeps else "",
        **_rule(config),
        **{name: values[key] for name, key in node.method.options.items()},
        **node.method.strategy_parts(node),
    )


def _rule(config: RunConfig) -> dict[str, Rule]:
    """Return the strategy's robust or private mean, if one is asked for."""
    rule = Rule(
        config.aggregation, config.robust_malicious, config.robust_trim,
        config.dp_clip, config.dp_noise,
    )  # fmt: skip
    return {"rule": rule} if rule.needed else {}


def _starting_point(
    node: Node, strategy: ClientStrategy, run: RunDirectory, saved: Checkpoint | None
) -> tuple[ArrayRecord, int]:
    """Return the model to start from and the first round: fresh, or from a checkpoint."""
    run.truncate_rounds(saved.server_round if saved else 0)
    if saved is None:
        return to_array_record(to_arrays(node.workplace.shared)), 1
    strategy.restore(saved.strategy)
    return to_array_record(saved.arrays), saved.server_round + 1
