"""The papers' result tables as data, and the way from a published number to a run of one's own.

`tables` holds what was printed, `cells` turns a row into a configuration or says why it cannot be,
`plan` and `reproduce` run it, `commands` are `fedapp papers` and `fedapp reproduce`.
"""
