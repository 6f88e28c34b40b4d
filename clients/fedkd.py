"""The client of FedKD (Wu C. et al. 2022): mutual distillation, and a compressed shared model."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from clients.arrays import Arrays
from clients.pair import EXTRA, PairClient
from clients.prototype_losses import adaptive_mutual
from clients.training.arrays import load_arrays, to_arrays
from clients.update import Update

UPDATE = "mentee-update"


class FedKDClient(PairClient):
    """Adaptive mutual distillation; the mentee is sent compressed (Wu et al., Nat. Commun. 2022).

    `compress` and `decompress` are arguments, because client and server must use the same
    functions. With `sends="updates"` the client uploads the mentee's change since it received it,
    and stores the mentee as received, to which the server's next change is added.
    """

    def __init__(
        self,
        *args: Any,
        compress: Callable[[Arrays, int], Arrays],
        decompress: Callable[[Arrays, Arrays], Arrays],
        kl: str,
        detach: bool,
        sends: str,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.compress, self.decompress = compress, decompress
        self.per_element, self.detach = kl == "mean", detach
        self.sends_updates = sends == "updates"
        self._received: Arrays = {}  # the mentee at the start of the round

    def recall(self, keep_received: bool) -> None:
        """Load both models and replace the stored mentee by the received one."""
        super().recall(keep_received)
        stored = to_arrays(self._mentee())
        if not keep_received:
            return
        if UPDATE in self.extras:
            change = self.decompress(self.extras[UPDATE], stored)
            stored = {name: array + change[name] for name, array in stored.items()}
        elif EXTRA in self.extras:  # evaluations have none
            stored = self.decompress(self.extras[EXTRA], stored)
        self._received = stored
        load_arrays(self._mentee(), stored)

    def losses(self, features: Tensor, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return both losses of `adaptive_mutual`."""
        pair: Any = self.model
        mentee_features, mentee_logits = pair.seen
        return adaptive_mutual(
            (logits, mentee_logits), (features, pair.transform(mentee_features).float()), labels,
            self.per_element, self.detach,
        )  # fmt: skip

    def finish(self, received: Arrays, update: Update, lr: float) -> None:
        """Store both models and upload the mentee, or its change, compressed."""
        trained = to_arrays(self._mentee())
        if self.sends_updates:
            load_arrays(self._mentee(), self._received)  # it is stored
            trained = {name: array - self._received[name] for name, array in trained.items()}
        super().finish(received, update, lr)
        update.uploads = self.compress(trained, self.server_round)

    def _mentee(self) -> dict[str, Tensor]:
        """Return the mentee's parameters; its BatchNorm statistics stay with the client."""
        return dict(self.model.get_submodule("mentee").named_parameters())
