"""Readers of data files in many formats, which return arrays of images and labels."""
