"""The client's side: Flower NumPyClients, losses as pure functions, and the local training loop."""
