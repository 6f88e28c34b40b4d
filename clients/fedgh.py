"""FedGH's client: the server's header replaces its head; its prototypes train the header."""

from typing import Any

from clients.prototype_client import PrototypeClient
from clients.training.arrays import load_arrays

EXTRA = "header-"  # followed by the width of the header's hidden layer


class FedGHClient(PrototypeClient):
    """CE, starting from the received header; prototypes are uploaded (Yi et al., ACM MM 2023)."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        hidden: Any = self.model.get_submodule("head").hidden
        self.header = self.extras.get(f"{EXTRA}{hidden.out_features if hidden else 0}", {})

    def recall(self, keep_received: bool) -> None:
        """Load the model and replace its head by the received header."""
        super().recall(keep_received)
        if keep_received:
            load_arrays(self.model.get_submodule("head").state_dict(), self.header)
