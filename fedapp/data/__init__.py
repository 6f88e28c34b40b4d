"""Data sets, their partition over clients, and batches that stay on the device."""
