"""Data sets, their partition over clients, and batches on the device."""
