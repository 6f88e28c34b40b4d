"""The second stage of two-step personalisation: a client fine-tunes the final global model.

The client trains a copy, so that the process's global model, frozen head included, stays unchanged
for the next client.
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
    """Return a fine-tuned copy of the process's model; the model itself is the teacher.

    Several tunings act on the copy in turn. The copy belongs to the process, and the next client's
    call overwrites it. Raises `LossDiverged`.
    Source: FedDr+ (Kim S. et al., TMLR 2025), algorithm 1, personalisation; FedBABU section 5.
    """
    own = slot.spare("own")
    copy_weights(slot.model, own)
    for tuning in tunings:
        objective = replace(tuning.objective, class_counts=class_counts)
        frozen = FrozenModels()
        if objective.needs_global_weights:
            copy_weights(slot.model, slot.teacher)
            frozen = FrozenModels(slot.teacher)
        with training_only(own, tuning.part):
            result = train(own, frozen, objective, epoch, tuning.lr, tuning.settings)
        if not all(bool(parameter.isfinite().all()) for parameter in own.parameters()):
            raise LossDiverged(f"the fine-tuned model is not finite after {result.steps} steps")
    return own
