"""The server's side of one run."""

import logging
from contextlib import suppress
from dataclasses import replace

from flwr.app import ArrayRecord
from flwr.serverapp import Grid

from clients.training.arrays import to_arrays
from fedapp.config.privacy import Budget
from fedapp.config.run_config import RunConfig
from fedapp.core.errors import UserError, out_of_memory
from fedapp.core.extension_files import own_mistake
from fedapp.models.groups import find_group
from fedapp.results.checkpoint import Checkpoint
from fedapp.results.run_directory import RunDirectory
from fedapp.runtime.callbacks.base import ENDINGS
from fedapp.runtime.callbacks.recorder import Recorder
from fedapp.runtime.node.identity import shared_properties
from fedapp.runtime.process.context import ProcessContext
from fedapp.runtime.server.preflight import forget, wait_for_nodes
from fedapp.runtime.server.privacy import last_of_nodes, last_round
from fedapp.runtime.server.strategy import build_strategy, restore
from strategies.rounds.base import ClientStrategy
from strategies.rounds.federation import Federation
from strategies.rounds.records import to_array_record
from strategies.rounds.report import RoundDiverged, RoundFailed

log = logging.getLogger(__name__)


def train(grid: Grid, recorder: Recorder, saved: Checkpoint | None) -> None:
    """Wait for the nodes and run the remaining rounds."""
    config, process = recorder.config, recorder.process
    first_round = saved.server_round + 1 if saved else 1
    with recorder.refusing():
        federation = _federation(grid, recorder)
        # before anything of an earlier attempt is removed
        allowed = last_round(Budget.of(config), recorder.directory, first_round, config.num_rounds)
        state_key = _state_key(grid, federation, recorder, saved)
        strategy = build_strategy(config, process, federation, state_key)
        last = last_of_nodes(strategy, first_round, allowed)
        arrays = _starting_point(process, strategy, recorder.directory, saved)
    try:
        recorder.begin(strategy, first_round, arrays, last)
        strategy.start(
            grid, arrays, last, config.round_timeout,
            evaluate_fn=recorder.end_of_round, first_round=first_round,
        )  # fmt: skip
        recorder.check_last()
    except RoundFailed as reason:
        diverged = isinstance(reason, RoundDiverged)
        recorder.finish("failed", str(reason), diverged=diverged)
        if diverged:  # it would do so again, so nobody resumes it, unless a node has lied
            _forget_states(grid, federation, strategy, config, config.tolerate_failures)
        elif config.secure_aggregation != "off":
            _forget_secrets(grid, federation)
        raise UserError(str(reason)) from None
    except UserError as mistake:
        recorder.finish("failed", str(mistake))
        raise
    except BaseException as error:  # Ctrl-C too: the model trained so far is kept
        is_own = isinstance(error, Exception) and not out_of_memory(error)
        if is_own and (sentence := own_mistake(error)):
            recorder.finish("failed", sentence)
            raise UserError(sentence) from None
        recorder.finish("interrupted", "" if isinstance(error, ENDINGS) else repr(error))
        raise
    if problem := recorder.finish("completed", _ended_by(config, allowed, last)):
        raise UserError(problem)
    _forget_states(grid, federation, strategy, config)  # last, because it may be interrupted


def _ended_by(config: RunConfig, allowed: int, last: int) -> str:
    """Return which limit has ended a run after round `last`; "" if it was the planned last one.

    `allowed` is the last round that the run's own budget of privacy allows.
    """
    if last == config.num_rounds:
        return ""
    node = "a node's privacy-epsilon"
    limit = node if last < allowed else f"dp-epsilon {config.dp_epsilon:g}"
    return f"a further round would exceed {limit}"


def _federation(grid: Grid, recorder: Recorder) -> Federation:
    """Wait for the nodes; return the clients that each of them hosts."""
    config, expected = recorder.config, shared_properties(recorder.process)
    federation = wait_for_nodes(grid, config.num_clients, expected, config.round_timeout)
    newcomers = config.new_clients
    return replace(federation, architectures=_architectures(config), newcomers=newcomers)


def _forget_secrets(grid: Grid, federation: Federation) -> None:
    """Let the nodes remove their secrets of a failed round, if the grid still works."""
    with suppress(Exception):  # its error would hide the reason of the failure
        forget(grid, federation, "")


def _forget_states(
    grid: Grid,
    federation: Federation,
    strategy: ClientStrategy,
    config: RunConfig,
    keep: bool = False,
) -> None:
    """Let the nodes remove what they keep of an ended run; clients' states only unless `keep`.

    The user may want to keep them, too.
    """
    states = strategy.state_key if not (config.keep_state or keep) else ""
    if states or config.secure_aggregation != "off":
        forget(grid, federation, states)


def _architectures(config: RunConfig) -> dict[int, str]:
    """Return the architecture of each client; empty if all have the same."""
    if not config.model_group:
        return {}
    group = find_group(config.model_group)
    return {client: group.architecture_of(client) for client in range(config.num_clients)}


def _state_key(
    grid: Grid, federation: Federation, recorder: Recorder, saved: Checkpoint | None
) -> str:
    """Return the key of the clients' states: that of a resumed run, or a new one.

    States of an abandoned attempt without checkpoint are removed: they are from later rounds.
    """
    run, config = recorder.directory, recorder.config
    if saved is not None:
        return run.state_key()
    old = run.earlier_state_key()
    if old and recorder.process.keeps and not config.keep_state:
        forget(grid, federation, old)
    return run.new_state_key()


def _starting_point(
    process: ProcessContext, strategy: ClientStrategy, run: RunDirectory, saved: Checkpoint | None
) -> ArrayRecord:
    """Return the model to start from: that of the checkpoint if there is one."""
    if saved is None:
        run.truncate_rounds(0)
        return to_array_record(to_arrays(process.slot.shared))
    source = f"resume: the checkpoint of round {saved.server_round} in {run.checkpoints}"
    restore(strategy, saved, to_arrays(process.slot.shared), source)
    if (kept := len(run.rounds())) < saved.server_round:
        text = "metrics.jsonl has %d of the %d rounds of the checkpoint; the others are not there"
        log.warning(text, kept, saved.server_round)
    run.truncate_rounds(saved.server_round)
    return to_array_record(saved.arrays)
