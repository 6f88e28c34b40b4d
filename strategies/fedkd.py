"""FedKD's server: averages the small models (mentees) that clients keep beside their own."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from strategies.aggregate import Arrays, UpdateRefused
from strategies.form import misfit
from strategies.rounds.named_arrays import strip_prefix
from strategies.rounds.uploads import UploadRounds

EXTRA, UPDATE = "mentee", "mentee-update"
_STATE = "mentee."
_LARGEST = 1e6


class FedKD(UploadRounds[Arrays]):
    """Uniform mean of the clients' mentees, sent as truncated decompositions in both directions.

    With `sends="updates"` these are decompositions of changes: each client's since it received the
    mentee, and their mean, which the server adds to its mentee. Clients of the round before get
    this mean, and add it to the mentee that they received then; the others get the mentee.
    Source: Wu et al., Nature Communications 2022; changes as in its authors' code.
    """

    def __init__(
        self,
        *args: Any,
        mentee: Arrays,
        compress: Callable[[Arrays, int], Arrays],
        decompress: Callable[[Arrays, Arrays], Arrays],
        sends: str = "weights",
        whole: bool = False,
        **kwargs: Any,
    ) -> None:
        """Prepare; `mentee` is the initial model, which the first round sends uncompressed.

        With `whole` clients always get the mentee itself, as a client may have lost its own.
        """
        super().__init__(*args, **kwargs)
        self.mentee, self.sent = mentee, mentee
        self.compress, self.decompress = compress, decompress
        self.sends_updates, self.whole = sends == "updates", whole
        self._followers: frozenset[int] = frozenset()  # clients that hold the mentee before `sent`

    def extras(self, clients: Sequence[int]) -> dict[str, Arrays]:
        """Send the compressed mean of the previous round, or the mentee to those who missed it."""
        if not self.sends_updates:
            return {EXTRA: self.sent}
        if clients and not self.whole and self._followers.issuperset(clients):
            return {UPDATE: self.sent}
        return {EXTRA: self.mentee}

    def read(self, client: int, arrays: Arrays) -> Arrays:
        """Return a client's mentee; raises `UpdateRefused` if it cannot be averaged."""
        for name, array in arrays.items():
            if array.dtype != np.float32:
                raise UpdateRefused(f"'{name}' is {array.dtype}, not float32")
        try:
            mentee = self.decompress(arrays, self.mentee)
        except ValueError as error:
            raise UpdateRefused(str(error)) from None
        if difference := misfit(mentee, self.mentee):
            raise UpdateRefused(difference)
        for name, array in mentee.items():
            if not (np.abs(array) <= _LARGEST).all():
                raise UpdateRefused(
                    f"'{name}' has values that are not finite or above {_LARGEST:g}"
                )
        return mentee

    def end_round(self, received: Arrays) -> Arrays:
        """Average in the order of the client ids and compress the mean for the next round."""
        if uploads := self.uploads():
            mean: Arrays = {}
            for name in self.mentee:
                exact = np.mean([mentee[name] for mentee in uploads], axis=0, dtype=np.float64)
                mean[name] = np.asarray(exact, np.float32)
            self.sent = self.compress(mean, self.server_round)
            if self.sends_updates:
                change = self.decompress(self.sent, self.mentee)
                self.mentee = {name: old + change[name] for name, old in self.mentee.items()}
                self._followers = frozenset(self._read)
        return received

    def state(self) -> Arrays:
        """Return the arrays that the next round sends."""
        sent = self.mentee if self.sends_updates else self.sent
        return {_STATE + name: array for name, array in sent.items()}

    def load_state(self, state: Arrays) -> None:
        """Restore the arrays that the next round sends, to all clients."""
        saved = strip_prefix(state, _STATE)
        if self.sends_updates:
            self.mentee, self._followers = saved, frozenset()
        else:
            self.sent = saved
