"""What a client keeps between rounds: control variates, previous and personal models."""
