"""FedMargin, an invented method, and what it is tried on: an example of extending fedapp."""
