"""What a run leaves behind: its directory, its curves, its report and its console lines.

Everything a reader sees after a run is built from the files of the run directory alone, so a
report can be made again, on another machine, long after the run.
"""
