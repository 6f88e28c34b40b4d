"""The papers' result tables as data, and the conversion of published numbers to runs.

`tables` has the published numbers. `cells` converts a row to a configuration, or gives the reason
why it cannot run. `plan` and `reproduce` plan and execute the runs.
"""
