"""FedGH's server: trains a header for all clients on the prototypes that they upload."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from strategies.aggregate import Arrays
from strategies.prototypes.rounds import PrototypeRounds
from strategies.prototypes.training import ServerTraining, train_on_pairs
from strategies.prototypes.uploads import Table, Upload, pairs
from strategies.rounds.named_arrays import load_module, module_arrays

EXTRA = "header-"  # followed by the width of the hidden layer


class FedGH(PrototypeRounds):
    """SGD on CE(header(p), c); one header per shape of heads, each trained on all prototypes.

    The headers persist over rounds. Source: Yi et al., ACM MM 2023, algorithm 1.
    """

    makes = "headers"
    trains = True

    def __init__(
        self, *args: Any, headers: Mapping[int, nn.Module], hidden_of: Callable[[int], int],
        training: ServerTraining, epochs: int, evaluate_when: str, **kwargs: Any,
    ) -> None:  # fmt: skip
        """Prepare; `headers` by width of the hidden layer, `hidden_of` maps a client to its width.

        Clients are evaluated with their own heads or, "after-download", with the new header.
        """
        super().__init__(*args, **kwargs)
        self.tests_header = evaluate_when == "after-download"
        self.headers, self.hidden_of = dict(headers), hidden_of
        self.training, self.epochs = training, epochs

    def extras(self, clients: Sequence[int]) -> dict[str, Arrays]:
        """Send each node the headers of its clients' shapes."""
        widths = sorted({self.hidden_of(client) for client in clients})
        return {f"{EXTRA}{width}": module_arrays(self.headers[width]) for width in widths}

    def evaluation_extras(self, clients: Sequence[int]) -> dict[str, Arrays]:
        """Send the headers if they are evaluated."""
        return self.extras(clients) if self.tests_header else {}

    def update(self, uploads: list[Upload]) -> Table:
        """Train every header; there is no table."""
        for header in self.headers.values():
            train_on_pairs(
                header, partial(_loss, header), *pairs(uploads),
                self.training, self.server_round, self.epochs,
            )  # fmt: skip
        return self.table

    def state(self) -> Arrays:
        """Return the table and the headers."""
        state = super().state()
        for width, header in self.headers.items():
            state |= module_arrays(header, f"{EXTRA}{width}.")
        return state

    def load_state(self, state: Arrays) -> None:
        """Restore the table and the headers."""
        super().load_state(state)
        for width, header in self.headers.items():
            load_module(header, state, f"{EXTRA}{width}.")


def _loss(header: nn.Module, prototypes: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(header(prototypes), labels)
