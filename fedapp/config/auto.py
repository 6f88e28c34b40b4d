"""What "auto" means for each data set, model, partition and method.

The papers' values are in `fedapp.config.paper_settings`. A method without a rate of its own takes
the general one of its setting.
"""

from __future__ import annotations

from typing import Any

from fedapp.config import paper_settings as papers
from fedapp.config.paper_settings import Setting
from fedapp.config.run_config import RunConfig
from fedapp.data.datasets import DATASETS, computes_statistics, settings_name
from fedapp.data.partition.table import PARTITIONS
from fedapp.methods.row import USUAL_TEMPERATURES, Method
from fedapp.methods.table import BUILT_IN
from fedapp.models.backbones import BackboneProperty, fitting_backbones
from fedapp.models.groups import MODEL_GROUPS


def _streams(name: str) -> bool:
    return name in DATASETS and DATASETS[name].streams


def default_model(dataset: str, needs: BackboneProperty) -> str:
    """Return the papers' backbone for a data set, or the first with what a method needs."""
    name = settings_name(dataset)
    usual = papers.MODEL_OF.get(name, "resnet18" if _streams(name) else "cnn")
    fitting = fitting_backbones(needs)
    return usual if usual in fitting else fitting[0]


def is_ordinary(name: str, row: Method) -> bool:
    """Return whether the papers' general rates are those of the method with the settings of `name`.

    They are for cross-entropy on a head without normalised features, and not for a user's method.
    """
    plain = row.loss.base == "ce" and row.head.name in ("linear", "frozen-random")
    return plain and name in BUILT_IN


def find_setting(dataset: str, model: str) -> Setting:
    """Return the published setting for a data set and model, or the general setting.

    Photos that are decoded when they are used have a general setting of their own.
    """
    general = papers.PHOTOS if _streams(dataset) else papers.GENERAL
    return papers.SETTINGS.get((dataset, model.removesuffix("-imagenet-stem")), general)


def blend_settings(
    base: str, regulariser: str, data_and_model: tuple[str, str], partition: str
) -> dict[str, float]:
    """Return the tuned "beta" and the "tau" of a regulariser that the user adds to a base method.

    A value that the paper did not tune is missing; the caller's default applies.
    """
    settings = {"tau": USUAL_TEMPERATURES[regulariser]} if regulariser in USUAL_TEMPERATURES else {}
    betas = papers.BETAS.get(partition, {}).get(base)
    if data_and_model == papers.TUNED_ON and betas is not None and regulariser in papers.ORDER:
        settings["beta"] = betas[papers.ORDER.index(regulariser)]
    return settings


PARTITION_SEED = 1  # of pooled data: runs with different seeds share one partition


def pools_data(partition: str) -> bool:
    """Return whether a partition pools training and test images before it divides them."""
    return partition in PARTITIONS and PARTITIONS[partition].pools


def gives_images(partition: str) -> bool:
    """Return whether each client has images of its own from the start, which nobody divides."""
    return partition in PARTITIONS and PARTITIONS[partition].given


def fixes_images(partition: str) -> bool:
    """Return whether each client's images are given: from the start, or by a file."""
    return partition == "file" or gives_images(partition)


def computes_from_clients(config: RunConfig) -> bool:
    """Return whether mean and deviation that normalise images come from all clients' images."""
    return not gives_images(config.partition) and computes_statistics(config.dataset)


def partition_settings(config: RunConfig) -> dict[str, Any]:
    """Return what "auto" means for the keys of the partition."""
    pools = config.pool_data
    if pools == "auto":
        pools = pools_data(config.partition)
    noisy = config.dp_noise if config.dp_noise != "auto" else config.dp_epsilon
    hides = bool(noisy) and computes_from_clients(config)
    return {
        "normalisation": "symmetric" if pools or hides else "dataset",
        "classes_per_client": papers.CLASSES_PER_CLIENT.get(settings_name(config.dataset), 2),
        "pool_data": pools,
        "partition_seed": PARTITION_SEED if pools else config.seed,
    }


def group_settings(config: RunConfig, method: Method) -> dict[str, Any]:
    """Return what "auto" means if clients have different architectures: the FedDOR paper's values.

    The groups `tiny` (for a first try) and `small` (four different networks that a CPU trains in an
    hour or two) have their own feature sizes.
    """
    if method.heterogeneous is None:
        return {}
    group = "tiny" if config.model_group == "auto" else config.model_group
    return {
        "model_group": group,
        "feature_dim": MODEL_GROUPS[group].feature_dim if group in MODEL_GROUPS else 512,
        **papers.MODEL_PER_CLIENT,
    }
