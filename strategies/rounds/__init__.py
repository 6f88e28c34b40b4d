"""The rounds that every strategy runs: sampling, messages, checks and exact sums."""
