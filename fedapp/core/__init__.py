"""What knows nothing of federated learning: errors, paths, files, random numbers, hardware."""
