"""The client of FedRep (Collins et al. 2021): first the head, then the body."""

from collections.abc import Callable
from dataclasses import replace

from clients.personal_part import PersonalPartClient
from clients.training.local_training import Batches, LocalSettings, TrainingResult, train
from clients.training.parts import BODY, HEAD, frozen_statistics, training_only


class FedRepClient(PersonalPartClient):
    """Trains its head for E epochs on the received body, then the body for one epoch.

    Source: FedRep (Collins et al. 2021, ICML), algorithm 1, with epochs for its gradient steps.
    """

    def run(self, server_round: int, lr: float) -> TrainingResult:
        """Train head and body in turn."""
        return self._update(self.data.training(server_round), lr)

    def personalise(self, server_round: int, lr: float) -> None:
        """Do one local update from the new body; its result is discarded after the evaluation."""
        super().personalise(server_round, lr)
        self.copy_to_teacher()
        self._update(self.data.tuning(server_round), lr)

    def _update(self, epoch: Callable[[], Batches], lr: float) -> TrainingResult:
        with frozen_statistics(self.model):
            head = self._phase(HEAD, epoch, lr, self.settings)
        body = self._phase(BODY, epoch, lr, replace(self.settings, epochs=1))
        return head.followed_by(body)

    def _phase(
        self, part: str, epoch: Callable[[], Batches], lr: float, settings: LocalSettings
    ) -> TrainingResult:
        with training_only(self.model, part):
            return train(self.model, self.frozen_models(), self.objective, epoch, lr, settings)
