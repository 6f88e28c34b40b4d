"""One local training: the objective, the loop over batches and the optimiser."""
