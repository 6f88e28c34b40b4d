"""The server's side: Flower strategies, and aggregation as pure functions on arrays."""
