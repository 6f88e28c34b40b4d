"""Basics independent of federated learning: errors, paths, files, random numbers, hardware."""
