"""What observes a run: evaluation, metrics, checkpoints, trackers and the summary.

A callback of your own is a subclass of `Callback`.
"""

from fedapp.runtime.callbacks.base import ActiveRun, Callback

__all__ = ["ActiveRun", "Callback"]
