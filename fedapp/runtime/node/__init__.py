"""What a node answers: training, evaluation and queries of the clients that it hosts."""
