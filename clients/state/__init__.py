"""A client's state between rounds: control variates, previous and personal models."""
