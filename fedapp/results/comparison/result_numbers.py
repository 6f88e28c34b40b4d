"""The numbers of a run's result, also of one that an earlier version of fedapp has summarised."""

import logging
from typing import Any

from fedapp.core.errors import UserError
from fedapp.results.comparison.convergence import accuracy_last10
from fedapp.results.comparison.spread import LAST10
from fedapp.results.folders import readable
from fedapp.results.run_directory import RunDirectory

log = logging.getLogger(__name__)


def result_numbers(run: RunDirectory) -> dict[str, Any]:
    """Return summary.json; a completed run that has no `LAST10` there gets that of its rounds.

    A warning names a run whose rounds cannot be read.
    """
    summary = run.summary()
    if summary.get("status") == "completed" and LAST10 not in summary:
        try:
            with readable(run.path):
                summary[LAST10] = accuracy_last10(run.rounds())
        except UserError as error:
            log.warning("no mean of the last ten rounds of %s: %s", run.name, error)
    return summary
