"""The ServerApp: from a run configuration to a trained model and a run directory.

It reads the configuration, meets the nodes, builds the method's strategy from the table and lets it
run its rounds; `Recorder` writes down what happens. A mistake in the configuration ends the run
with one sentence, before anything is trained.
"""

import logging
import sys
import time
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedapp.analysis.callback import Analyst
from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError, out_of_memory
from fedapp.core.log import configure
from fedapp.runtime.node import Node
from fedapp.runtime.opening import check_name, opened_run
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
    try:
        node = Node(config, data_dir)  # before the directory: data that are not there leave none
        for note in node.partition.notes:
            log.info("partition: %s", note)
        with (
            opened_run(config, run_config) as (directory, saved),
            closing(
                Recorder(directory, config, node, started, Analyst(directory, config, node))
            ) as recorder,
        ):
            train(grid, recorder, saved)
    except torch.OutOfMemoryError as error:
        raise UserError(f"the server: {out_of_memory(error)}") from None
