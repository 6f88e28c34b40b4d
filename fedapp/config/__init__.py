"""The configuration of a run: its keys, what "auto" means, and what cannot work together."""
