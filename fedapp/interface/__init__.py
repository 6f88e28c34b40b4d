"""Training from Python, in notebooks and scripts: `run`, `sweep` and `load_run`.

The same runs as those of the `fedapp` command, to the bit, and the same run directories. What
differs is what one gets back: objects with the figures, the curves and the model.
"""

from fedapp.interface.rounds import Round, Rounds
from fedapp.interface.runs import Run, load_run
from fedapp.interface.sweeps import Sweep, sweep
from fedapp.interface.training import RunFailed, run

__all__ = ["Round", "Rounds", "Run", "RunFailed", "Sweep", "load_run", "run", "sweep"]
