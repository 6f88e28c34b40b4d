"""Backbones, heads and the groups of architectures that clients of one federation have."""

from fedapp.models.model import Model, build_model

__all__ = ["Model", "build_model"]
