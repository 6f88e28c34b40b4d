"""The ServerApp: from a run configuration to a trained model and a run directory.

It reads the configuration, asks every node who it is, builds the method's strategy from the table
and lets it run its rounds. Callbacks evaluate, print and write what happens. A mistake in the
configuration ends the run with one sentence, before anything is trained.
"""

import logging
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedapp.analysis.callback import Measures
from fedapp.config.resolve import parse_config
from fedapp.config.run_config import RunConfig
from fedapp.core.errors import UserError, out_of_memory
from fedapp.core.log import configure
from fedapp.core.plugins import plugin
from fedapp.results.run_directory import RunDirectory
from fedapp.results.trackers import open_tracker
from fedapp.runtime import callbacks
from fedapp.runtime.callback import Callback
from fedapp.runtime.opening import check_name, opened_run
from fedapp.runtime.process import ProcessContext
from fedapp.runtime.recorder import Recorder
from fedapp.runtime.server import train

log = logging.getLogger(__name__)
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
    configure()
    config = parse_config(run_config)
    check_name(config)
    own = user_callbacks(config.callbacks)
    try:
        # before the directory: data that are not there leave none
        process = ProcessContext(config, data_dir)
        for note in process.data.partition.notes:
            log.info("partition: %s", note)
        with (
            opened_run(config, run_config) as (directory, saved),
            closing(
                Recorder(directory, config, process, started, callbacks_of(config, directory, own))
            ) as recorder,
        ):
            train(grid, recorder, saved)
    except torch.OutOfMemoryError as error:
        raise UserError(f"the server: {out_of_memory(error)}") from None


def callbacks_of(
    config: RunConfig, directory: RunDirectory, own: Sequence[Callback]
) -> list[Callback]:
    """Return what watches a run, in the order in which they are called.

    A user's callbacks come after the evaluation and before metrics.jsonl, so that what they add to
    a round is written. Raises UserError where the tracker cannot be loaded.
    """
    tracker = open_tracker(config.tracker, directory)
    return [
        callbacks.Evaluate(),
        callbacks.RoundTimer(),
        *own,
        callbacks.MetricsFile(),
        callbacks.Console(),
        callbacks.Checkpoints(),
        callbacks.Tracking(tracker),
        Measures(config.analyses, tracker),
        callbacks.SummaryFile(),
        callbacks.FinalModel(),
        callbacks.Figures(),
        callbacks.Report(),
    ]


def user_callbacks(words: str) -> list[Callback]:
    """Return the callbacks that the key `callbacks` names; raises UserError for a wrong name."""
    return [
        callbacks.SafeCallback(word, plugin("fedapp.callbacks", word, Callback))
        for word in words.split()
    ]
