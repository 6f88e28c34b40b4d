"""Federated averaging with stock Flower."""
