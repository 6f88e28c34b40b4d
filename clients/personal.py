"""Clients that keep a part of the model, or all of it, for themselves.

What a client keeps is whatever of its model does not travel, so one class serves FedPer (the head
stays at home) and training alone (everything does), and FedRep only trains its parts in turn.
"""

from collections.abc import Callable
from dataclasses import replace

from clients.arrays import load_arrays, to_arrays
from clients.client import Arrays, LocalClient, check_finite, nbytes
from clients.local_training import Batches, LocalSettings, TrainingResult, train
from clients.parts import BODY, HEAD, still_statistics, training_only


class PersonalPartClient(LocalClient):
    """Keeps what does not travel between its rounds; a new client starts from the initial model.

    Source: FedPer (Arivazhagan et al. 2019), personalisation layers.
    """

    def prepare(self, server_round: int) -> None:
        """Take the client's own part of the model out of its memory."""
        self._recall()

    def finish(
        self, received: Arrays, trained: Arrays, result: TrainingResult, lr: float
    ) -> Arrays:
        """Keep the client's own part; raises `LossDiverged` if it is not finite."""
        self.kept = to_arrays(self.place.private)
        check_finite(self.kept, "the personal part", result.steps)
        return trained

    def state_bytes(self) -> int:
        """Return the size of the client's own part."""
        return super().state_bytes() + nbytes(self.place.private.values())

    def personalise(self, server_round: int, lr: float) -> None:
        """Put the client's own part beside the received one."""
        self._recall()

    def _recall(self) -> None:
        initial = self.place.copy("initial").state_dict()
        private = self.place.private
        load_arrays(private, self.recalled or to_arrays({n: initial[n] for n in private}))


class FedRepClient(PersonalPartClient):
    """Trains its head for E epochs on the received body, then the body for one epoch.

    Source: FedRep (Collins et al. 2021, ICML), algorithm 1, with epochs for its gradient steps.
    """

    def run(self, server_round: int, lr: float) -> TrainingResult:
        """Train head and body in turn."""
        return self._update(self.data.training(server_round), lr)

    def personalise(self, server_round: int, lr: float) -> None:
        """Do one more local update from the new body, which is forgotten after the evaluation."""
        super().personalise(server_round, lr)
        self.keep_start()
        self._update(self.data.tuning(server_round), lr)

    def _update(self, epoch: Callable[[], Batches], lr: float) -> TrainingResult:
        with still_statistics(self.model):
            head = self._phase(HEAD, epoch, lr, self.settings)
        body = self._phase(BODY, epoch, lr, replace(self.settings, epochs=1))
        steps = head.steps + body.steps
        loss = (head.loss * head.steps + body.loss * body.steps) / steps
        return TrainingResult(loss, steps, head.images + body.images, head.seconds + body.seconds)

    def _phase(
        self, part: str, epoch: Callable[[], Batches], lr: float, settings: LocalSettings
    ) -> TrainingResult:
        with training_only(self.model, part):
            return train(
                self.model, self.watchers(self.objective), self.objective, epoch, lr, settings
            )
