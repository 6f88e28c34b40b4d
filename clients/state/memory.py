"""A client's state in one round: a view of the stored state at the start of that round.

A client that has trained before in this run must find its state; a new client has none. Only the
server knows which clients have trained, so the task contains it. A lost state is therefore never
replaced silently by a new one.
"""

from dataclasses import dataclass

from clients.arrays import Arrays
from clients.state.store import ClientState, StateError

REINIT = "reinit"


@dataclass(frozen=True)
class Memory:
    """The state of one client in one round."""

    state: ClientState
    server_round: int
    known: bool  # the server has accepted training of this client before
    missing: str = "error"  # the reaction to a lost state: "error" or "reinit"

    def load(self) -> Arrays | None:
        """Return the client's state when this round began; None if it had none yet.

        Raises:
            StateError: the state is damaged, foreign, from a later round, or lost.
        """
        arrays = self.state.load(self.server_round)
        if arrays is None and self.known and self.missing != REINIT:
            raise StateError(
                "the client has trained before in this run but its state is gone (a completed run "
                "keeps it with keep-state only); restore its folder, or set state-missing to "
                "'reinit' to start it without state"
            )
        return arrays

    def save(self, arrays: Arrays) -> None:
        """Keep `arrays` as the state after this round; raises `StateError`."""
        self.state.save(arrays, self.server_round)
