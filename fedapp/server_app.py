"""The ServerApp: from a run configuration to a trained model and a run directory.

It reads the configuration, queries every node for its identity, builds the method's strategy from
the table and runs the rounds. Callbacks evaluate the model, print progress and write the files of
the run. A configuration error ends the run with one sentence before training starts.
"""

import logging
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedapp.analysis.callback import Measures
from fedapp.analysis.class_statistics import Statistics
from fedapp.config.checks import check_new_run
from fedapp.config.overrides import with_extension_keys
from fedapp.config.privacy import Budget
from fedapp.config.resolve import parse_config, rate_note
from fedapp.config.run_config import RunConfig
from fedapp.core.errors import UserError, full_memory_explained
from fedapp.core.extension_files import own_mistakes_explained
from fedapp.core.log import configure
from fedapp.core.plugins import plugin
from fedapp.data.datasets import incomplete
from fedapp.results.run_directory import RunDirectory
from fedapp.results.trackers import check_tracker, open_tracker
from fedapp.runtime.callbacks import standard as callbacks
from fedapp.runtime.callbacks.base import Callback
from fedapp.runtime.callbacks.best_model import BestModel
from fedapp.runtime.callbacks.checkpoints import Checkpoints
from fedapp.runtime.callbacks.recorder import Recorder
from fedapp.runtime.callbacks.safe import SafeCallback
from fedapp.runtime.process.context import ProcessContext
from fedapp.runtime.server.opening import check_name, opened_run
from fedapp.runtime.server.privacy import PrivacyBudget
from fedapp.runtime.server.training import train

log = logging.getLogger(__name__)
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run one federated training; raises UserError, without a traceback, if it cannot run."""
    started = time.monotonic()
    try:
        data_dir = str(context.node_config.get("data-dir", ""))
        run(grid, context.run_config, data_dir, started)
    except UserError as mistake:
        sys.tracebacklimit = 0  # Flower logs the exception: this reduces it to its sentence
        raise UserError(f"fedapp: {mistake}") from None


def run(grid: Grid, run_config: Mapping[str, Any], data_dir: str, started: float) -> None:
    """Train and write the whole run directory, also if the rounds end early."""
    configure()
    run_config = with_extension_keys(run_config)
    config = parse_config(run_config)
    check_new_run(config)
    if note := rate_note(run_config, config):
        log.info(note)
    check_name(config)
    check_tracker(config.tracker)
    own = user_callbacks(config.callbacks)
    with closed_at_the_end(own), own_mistakes_explained(), full_memory_explained("the server: "):
        # before the directory is created: missing data must not leave an empty one
        process = ProcessContext(config, data_dir)
        for note in process.data.partition.notes:
            log.info("partition: %s", note)
        if note := incomplete(process.data.dataset, config.pool_data is True):
            log.warning(note)
        with opened_run(config, run_config, process.data.hash) as (directory, saved):
            directory.write_partition(*process.data.class_counts(), process.data.hash)
            calls, origins = callbacks_of(grid, config, directory, own), config.origins(run_config)
            recorder = Recorder(directory, config, process, started, calls, origins)
            with closing(recorder):
                train(grid, recorder, saved)


def callbacks_of(
    grid: Grid, config: RunConfig, directory: RunDirectory, own: Sequence[Callback]
) -> list[Callback]:
    """Return the callbacks of a run in the order of their calls.

    A user's callbacks come after the evaluation and before metrics.jsonl, so that the values that
    they add to a round are written.

    Raises:
        UserError: the tracker cannot be loaded.
    """
    tracker = open_tracker(config.tracker, directory)
    budget = Budget.of(config)
    return [
        *([PrivacyBudget(budget)] if budget else []),
        callbacks.Evaluate(),
        callbacks.RoundTimer(),
        *own,
        callbacks.MetricsFile(),
        callbacks.ClientScores(),
        callbacks.Console(),
        Measures(config.analyses, tracker),
        *([BestModel()] if config.keep_best else []),  # before: a checkpoint's round is done
        Checkpoints(),  # after the measures, before a slow tracker
        callbacks.Tracking(tracker),
        callbacks.FinalModel(),
        *([Statistics(grid)] if config.class_statistics else []),
        callbacks.SummaryFile(),  # after the files whose presence it vouches for
        callbacks.Figures(),
        callbacks.Report(),
    ]


@contextmanager
def closed_at_the_end(own: Sequence[Callback]) -> Iterator[None]:
    """Close the user's callbacks, also those of a run that does not begin."""
    try:
        yield
    finally:
        for callback in own:
            callback.close()


def user_callbacks(names: str) -> list[Callback]:
    """Return the callbacks that the key `callbacks` names; raises UserError for a wrong name."""
    return [
        SafeCallback(name, plugin("fedapp.callbacks", name, Callback)) for name in names.split()
    ]
