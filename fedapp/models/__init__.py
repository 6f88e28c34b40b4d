"""Backbones, heads, and groups of architectures for the clients of one federation."""

from fedapp.models.model import Model, build_model

__all__ = ["Model", "build_model"]
