"""What a run's nodes are: plain calls, worker processes, Ray's virtual SuperNodes, or real ones."""
