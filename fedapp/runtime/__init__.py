"""One run: its server and its nodes, what both need (process/), and what observes it."""
