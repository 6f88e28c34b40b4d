"""What a measure of models is: shown local models one by one, it says its figures.

So only one local model is in memory at a time, and a measure takes a class of a few lines.
"""

from typing import Any, ClassVar

from fedapp.analysis.measures.views import Local, View
from fedapp.runtime.process import ProcessContext

Figures = dict[str, float]


class Measure:
    """The interface: `of_client` for each local model, then `of_model` once."""

    title: ClassVar[str]
    source: ClassVar[str]
    local: ClassVar[bool] = True  # whether it looks at local models, which cost a training each
    epochs: ClassVar[bool] = False  # whether it looks at them after each epoch (`Local.path`)

    def __init__(self, process: ProcessContext, received: View, result: View | None) -> None:
        """Take the model that the round's clients received, and the one they made, if known."""
        self.process, self.received, self.result = process, received, result

    @property
    def newest(self) -> View:
        """The global model after the round or, where that is not known, before it."""
        return self.result or self.received

    def of_client(self, local: Local) -> Figures:
        """Return the figures of one client."""
        return {}

    def of_model(self) -> dict[str, Any]:
        """Return the figures of the global model, after all clients; the node has it loaded."""
        return {}
