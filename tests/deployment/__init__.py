"""Tests with real SuperNodes: a package, so that its federation ends with its last test."""
