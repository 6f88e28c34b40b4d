"""The training of a published number as run-config keys: cohort, epochs, optimiser, augmentation.

As in `protocol`, a setting that a paper does not state becomes a note or a reason not to run.
"""

from collections.abc import Mapping

from fedapp.data.datasets import DATASETS
from fedapp.experiments.papers.protocol import CannotRunError, Keys, Published, Reason, in_one_place

AUGMENTATIONS = {
    "RandomResizedCrop, RandomHorizontalFlip, Normalize": "crop flip",
    "random horizontal flip": "flip",
    "random crop, horizontal flip, normalize; cutout on mnist, cifar10, cifar100": (
        "crop flip cutout"
    ),
}
NOT_LITERAL = {
    "crop flip": "augmentation: random crop with padding 4, as in the code bases the paper names, "
    "for its RandomResizedCrop"
}
PLAIN = {"feddor"}  # does not mention augmentation
USUAL = "crop flip"  # for CIFAR, if the paper refers to another paper for centralised training
NO_CUTOUT = {"cinic10": "crop-reflect flip"}  # FedNTD's loader also reflects the margins
DOUBTS = ("rounds_note", "lr_note", "local_epochs_note")


def training_keys(published: Published) -> Keys:
    """Return clients, rounds, local epochs and the optimiser without its learning rate."""
    for key in DOUBTS:
        if key in published.setting:
            published.notes.append(f"{key.removesuffix('_note')}: {published.setting[key]}")
    return {
        **_clients(published),
        "num-rounds": published.whole("rounds"),
        "batch-size": published.whole("batch_size"),
        "momentum": float(published.stated("momentum")),
        "weight-decay": float(published.stated("weight_decay")),
        "lr-schedule": _schedule(published),
        **_augmentation(published),
    }


def _clients(published: Published) -> Keys:
    """Return the numbers of clients and of local epochs."""
    if in_one_place(published):
        published.notes.append("epochs: not stated for training in one place, taken as the rounds")
        return {"num-clients": 1, "participation": 1.0, "local-epochs": 1}
    return {
        "num-clients": published.whole("clients"),
        "participation": float(published.stated("participation")),
        "local-epochs": published.whole("local_epochs"),
    }


def _schedule(published: Published) -> str:
    schedule, rounds = published.setting.get("lr_schedule"), published.number("rounds") or 0
    match schedule:
        case {"kind": "step", "factor": 0.1, "at_rounds": [half, three_quarters]} if (
            half == rounds // 2 and three_quarters == 3 * rounds // 4
        ):
            return "step"
        case {"kind": "exponential", "factor_per_round": 0.99}:
            return "exponential"
        case {"kind": "fixed"}:
            return "constant"
        case {"kind": "cosine"}:
            return "cosine"
        case str(words) if words.startswith("not stated"):
            published.notes.append(f"learning-rate schedule: {words}; x0.1 at R/2 and 3R/4")
            return "step"
    kind = schedule.get("kind") if isinstance(schedule, Mapping) else schedule
    raise CannotRunError(Reason.SETTING, f"learning-rate schedule {kind}")


def _augmentation(published: Published) -> Keys:
    text = str(published.setting.get("augmentation"))
    if published.setting.get("augmentation") is None and published.paper.name in PLAIN:
        published.notes.append("augmentation: not stated, none")
        return {"augmentation": "none"}
    if in_one_place(published) and text not in AUGMENTATIONS:
        published.notes.append(f"augmentation: not stated, taken as {USUAL}")
        return {"augmentation": USUAL}
    if text not in AUGMENTATIONS:
        raise CannotRunError(Reason.SETTING, "augmentation not stated")
    words = AUGMENTATIONS[text]
    if DATASETS[str(published.setting["dataset"])].streams:
        words = words.replace("crop", "rrc")  # photos of many sizes: exactly as stated
    if words in NOT_LITERAL:
        published.notes.append(NOT_LITERAL[words])
    if words.endswith("cutout") and (other := NO_CUTOUT.get(str(published.setting["dataset"]))):
        published.notes.append("augmentation: crops of images padded by reflection, as in the code")
        words = other
    return {"augmentation": words}
