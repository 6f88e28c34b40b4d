"""The HTML report of one run, also while it is running."""
