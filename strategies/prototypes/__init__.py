"""Servers that average, or train, one prototype per class."""
