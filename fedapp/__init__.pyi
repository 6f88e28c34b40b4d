# The names of fedapp/__init__.py for editors and type checkers. A file of its own, because an
# import there, even for types alone, would close a circle: all packages below import `fedapp`.
from fedapp.interface import Round as Round
from fedapp.interface import Rounds as Rounds
from fedapp.interface import Run as Run
from fedapp.interface import RunFailed as RunFailed
from fedapp.interface import Sweep as Sweep
from fedapp.interface import list_runs as list_runs
from fedapp.interface import load_run as load_run
from fedapp.interface import run as run
from fedapp.interface import sweep as sweep

__version__: str
__all__ = [
    "Round",
    "Rounds",
    "Run",
    "RunFailed",
    "Sweep",
    "__version__",
    "list_runs",
    "load_run",
    "run",
    "sweep",
]
