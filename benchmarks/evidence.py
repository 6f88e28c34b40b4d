"""Store the runs of published tables as data in docs/evidence, and make the tables and figures.

    python benchmarks/evidence.py collect FOLDER... --commit HASH --hardware "2 cores of ..."
    python benchmarks/evidence.py write

`collect` reads all run directories below FOLDER (of `fedapp reproduce` and others) and writes
runs.csv, one line per run, and rounds.csv, one line per run and evaluated round. It replaces the
lines of earlier collected runs. `write` draws the curves and fills the marked tables of the pages.
"""

import argparse
from pathlib import Path

from evidence_data import collect
from evidence_pages import write


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    commands = parser.add_subparsers(dest="command", required=True)
    adding = commands.add_parser("collect", help="add run directories to docs/evidence/*.csv")
    adding.add_argument("folders", type=Path, nargs="+")
    adding.add_argument("--commit", required=True, help="commit of the code that trained the runs")
    adding.add_argument("--hardware", required=True, help="machine that trained the runs")
    commands.add_parser("write", help="draw the figures and fill the tables")
    options = parser.parse_args()
    if options.command == "collect":
        collect(options.folders, options.commit, options.hardware)
    else:
        write()


if __name__ == "__main__":
    main()
