"""The engines: a run's nodes are plain calls, worker processes, Ray workers or real SuperNodes."""
