"""The second stage of two-step personalisation: a client trains the final global model further.

It happens on a copy, so that the global model in this process is what it was for the next client,
its frozen head included.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import Tensor, nn

from clients.training.local_training import Batches, FrozenModels, LossDiverged, train
from clients.training.model_slot import ModelSlot, Tuning, copy_weights
from clients.training.parts import training_only


def fine_tune(
    slot: ModelSlot,
    tunings: Sequence[Tuning],
    class_counts: Tensor,
    epoch: Callable[[], Batches],
) -> nn.Module:
    """Return a copy of the place's model after fine-tuning; the model itself is the teacher.

    Several tunings follow each other on the copy. Raises `LossDiverged`. The copy is the process's,
    and the next client's call overwrites it.
    Source: FedDr+ (Kim S. et al., TMLR 2025), algorithm 1, personalisation; FedBABU section 4.
    """
    own = slot.copy("own")
    copy_weights(slot.model, own)
    for tuning in tunings:
        objective = replace(tuning.objective, class_counts=class_counts)
        frozen = FrozenModels()
        if objective.needs_global:
            copy_weights(slot.model, slot.teacher)
            frozen = FrozenModels(slot.teacher)
        with training_only(own, tuning.part):
            result = train(own, frozen, objective, epoch, tuning.lr, tuning.settings)
        if not all(bool(parameter.isfinite().all()) for parameter in own.parameters()):
            raise LossDiverged(f"the fine-tuned model is not finite after {result.steps} steps")
    return own
