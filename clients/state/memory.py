"""A client's state in one round: a view of the stored state at the start of that round.

A client that has trained before in this run must find its state; a new client has none. Only the
server knows which trainings it has accepted, so the task says which was the client's last. A lost
state is therefore never replaced silently by a new one, and a training whose reply was lost leaves
no trace: the client continues from the state that belongs to what the server has.
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
    accepted: int | None  # the client's last round that the server accepted, 0: none; None: unsaid
    missing: str = "error"  # the reaction to a lost state: "error" or "reinit"

    @property
    def known(self) -> bool:
        """Whether the server has accepted training of this client before."""
        return bool(self.accepted)

    def load(self) -> Arrays | None:
        """Return the client's state when this round began; None if it had none yet.

        Raises:
            StateError: the state is damaged, foreign, from a later round, or lost.
        """
        arrays = self.state.load(self.server_round, self.accepted)
        if arrays is None and self.known and self.missing != REINIT:
            raise StateError(
                "the client has trained before in this run but its state is gone (a completed run "
                "keeps it with keep-state only); restore its folder, or set state-missing to "
                "'reinit' to start it without state"
            )
        return arrays

    def save(self, arrays: Arrays) -> None:
        """Keep `arrays` as the state after this round; raises `StateError`."""
        self.state.save(arrays, self.server_round, self.accepted)
