"""The `fedapp` command: one file per group of commands."""
