"""Batches for training and evaluation, in memory on the device or streamed to it."""
