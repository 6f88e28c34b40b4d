"""What a client remembers in one round: a view of its stored state that knows which round it is.

A client that has trained before in this run must find its state; one that has not must not care.
Only the server knows which is which, so the task says it, and a lost state is never silently
replaced by a fresh one.
"""

from dataclasses import dataclass

from clients.arrays import Arrays
from clients.state.store import ClientState, StateError

REINIT = "reinit"


@dataclass(frozen=True)
class Memory:
    """The state of one client as one round sees it."""

    state: ClientState
    server_round: int
    known: bool  # the server has accepted training of this client before
    missing: str = "error"  # what a lost state does: "error" or "reinit"

    def load(self) -> Arrays | None:
        """Return what the client knew when this round began; None if it had nothing yet.

        Raises `StateError`: the state is damaged, foreign, from a later round, or lost.
        """
        arrays = self.state.load(self.server_round)
        if arrays is None and self.known and self.missing != REINIT:
            raise StateError(
                "the client has trained before in this run but its state is gone; bring its folder "
                "back, or set state-missing to 'reinit' to start it afresh"
            )
        return arrays

    def save(self, arrays: Arrays) -> None:
        """Keep `arrays` as the state after this round; raises `StateError`."""
        self.state.save(arrays, self.server_round)
