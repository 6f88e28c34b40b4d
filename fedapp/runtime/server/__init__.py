"""The server of a run: it opens the directory, queries the nodes, and trains round by round."""
