"""The results of a run: its directory, curves, report and console lines.

Plots and reports need only the files of the run directory, so they can be made again later, also on
another machine.
"""
