"""What malicious clients do, so that robust rules and methods can be tested against them.

An attacker knows its own data and update only. Attacks that need the honest clients' updates, such
as "a little is enough" (Baruch et al. 2019, NeurIPS), are not here: no client of a federation has
them.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from torch import Tensor

from clients.training.local_training import Batches
from clients.training.model_slot import ClientData

Attack = Callable[[np.ndarray, np.random.Generator], np.ndarray]
Epochs = Callable[[int], Callable[[], Batches]]  # round -> the batches of its next epoch
LABELS = "label-flip"  # the attack that changes the labels and not the update


def sign_flip(step: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the opposite of the honest step of a tensor: gradient ascent, roughly."""
    return -step


def noise(step: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return Gaussian noise with the root mean square of the honest step of a tensor."""
    size = np.sqrt(np.mean(np.square(step, dtype=np.float64)))
    return (size * rng.standard_normal(step.shape)).astype(step.dtype)


ATTACKS: dict[str, Attack] = {"sign-flip": sign_flip, "noise": noise}


def flipped(batches: Batches, num_classes: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the batches with label C - 1 - y instead of y."""
    for images, labels in batches:
        yield images, num_classes - 1 - labels


def wrongly_labelled(data: ClientData) -> ClientData:
    """Return a client's data with label C - 1 - y instead of y for all training examples.

    Its class counts are those of the wrong labels. The test split keeps its labels.
    """
    num_classes = len(data.class_counts)

    def epochs(source: Epochs) -> Epochs:
        def of_round(server_round: int) -> Callable[[], Batches]:
            epoch = source(server_round)
            return lambda: flipped(epoch(), num_classes)

        return of_round

    return replace(
        data,
        training=epochs(data.training),
        tuning=epochs(data.tuning),
        examples=lambda server_round: flipped(data.examples(server_round), num_classes),
        class_counts=data.class_counts.flip(0),
        all_counts=data.all_counts.flip(0),
    )
