"""The second stage of two-step personalisation: a client trains the final global model further.

It happens on a copy, so that the global model in this process is what it was for the next client,
its frozen head included.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import Tensor, nn

from clients.training.local_training import Batches, LossDiverged, Watchers, train
from clients.training.parts import training_only
from clients.training.workplace import Tuning, Workplace, copy_weights


def fine_tune(
    place: Workplace,
    tunings: Sequence[Tuning],
    class_counts: Tensor,
    epoch: Callable[[], Batches],
) -> nn.Module:
    """Return a copy of the place's model after fine-tuning; the model itself is the teacher.

    Several tunings follow each other on the copy. Raises `LossDiverged`. The copy is the process's,
    and the next client's call overwrites it.
    Source: FedDr+ (Kim S. et al., TMLR 2025), algorithm 1, personalisation; FedBABU section 4.
    """
    own = place.copy("own")
    copy_weights(place.model, own)
    for tuning in tunings:
        objective = replace(tuning.objective, class_counts=class_counts)
        watchers = Watchers()
        if objective.needs_global:
            copy_weights(place.model, place.teacher)
            watchers = Watchers(place.teacher)
        with training_only(own, tuning.part):
            result = train(own, watchers, objective, epoch, tuning.lr, tuning.settings)
        if not all(bool(parameter.isfinite().all()) for parameter in own.parameters()):
            raise LossDiverged(f"the fine-tuned model is not finite after {result.steps} steps")
    return own
