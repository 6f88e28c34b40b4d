"""The Python interface for notebooks and scripts: `run`, `sweep`, `load_run` and `list_runs`.

The runs and their run directories are those of the `fedapp` command, bit for bit. The functions
return objects with the results, the curves and the model.
"""

from fedapp.interface.rounds import Round, Rounds
from fedapp.interface.runs import Run, list_runs, load_run
from fedapp.interface.sweeps import Sweep, sweep
from fedapp.interface.training import RunFailed, run

__all__ = ["Round", "Rounds", "Run", "RunFailed", "Sweep", "list_runs", "load_run", "run", "sweep"]
