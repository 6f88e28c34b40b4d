"""Checks of combinations of configuration values; each error is one sentence.

`RunConfig` itself checks types and ranges of single keys. The checks here need two keys, or the
tables of methods, models, data sets and partitions.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from math import gcd

from fedapp.config.aggregation_checks import check_aggregation, check_attack, check_upload_bits
from fedapp.config.auto import fixes_images, gives_images
from fedapp.config.fine_tuning import check_fine_tuning
from fedapp.config.measures import FEATURES_OF, measures_of_models
from fedapp.config.measures import WORDS as MEASURES
from fedapp.config.model_checks import (
    check_best,
    check_group,
    check_head,
    check_initial,
    check_model,
    check_model_keys,
    check_statistics,
)
from fedapp.config.privacy import check_statistics_hidden
from fedapp.config.run_config import RunConfig
from fedapp.core.errors import OWN, UserError, unknown
from fedapp.core.paths import LONGEST_NAME, is_folder_name
from fedapp.core.rng import cohort_size
from fedapp.data.batches.in_memory import parse_augmentation
from fedapp.data.batches.streamed import MOST_TEST_IMAGES, check_streamed
from fedapp.data.datasets import check_photo_keys, find_dataset
from fedapp.data.partition.table import PARTITIONS
from fedapp.data.readers.own_images import class_names
from fedapp.methods.row import BLEND, GLOBAL, PERTURB, Method
from fedapp.methods.table import check_fitting, find_method, kept_by_clients
from fedapp.models.backbones import BACKBONES

_TESTED_BY = {"own": "the server has", "folders": "the folders CLIENT/test have"}


def check_config(config: RunConfig) -> None:
    """Raise UserError for the first combination that cannot work."""
    row = find_method(config.method)
    _check_data(config)
    _check_name("model", config.model, BACKBONES, OWN)
    _check_name("partition", config.partition, PARTITIONS)
    _check_partition_file(config)
    _check_own(config)
    _check_folders(config)
    _check_chosen_images(config)
    _check_feature_skew(config)
    for word in config.analyses.split():
        _check_name("analyses: measure", word, MEASURES)
    check_measures(config.method, config.analyses, config.bottleneck)
    _check_blend(config, row)
    check_head(config, row)
    check_model(config, row)
    check_model_keys(config, row)
    check_statistics(config, row)
    check_best(config, row)
    check_initial(config)
    check_fine_tuning(config, row)
    check_group(config, row)
    _check_roles(config)
    _check_sampling(config)
    _check_device(config)
    _check_run_name(config)
    check_aggregation(config, row)
    check_upload_bits(config, row)
    check_attack(config, row)
    _check_states(config)


def check_new_run(config: RunConfig) -> None:
    """Raise UserError for what a new run must not do, but earlier versions' finished runs did."""
    check_statistics_hidden(config)
    check_fitting(config.method, config.regulariser)


def _check_data(config: RunConfig) -> None:
    info = find_dataset(config.dataset)
    if config.class_list and not info.lists_classes:
        raise UserError(
            f"run-config key 'class-list' is '{config.class_list}', but dataset '{config.dataset}' "
            "has one list of classes; leave it empty"
        )
    check_photo_keys(config.dataset, config.image_size, config.test_share)
    if config.test_share and config.partition in _TESTED_BY:
        raise UserError(
            f"run-config key 'test-share' is {config.test_share:g}, but with partition "
            f"'{config.partition}' {_TESTED_BY[config.partition]} the test images; set it to 0"
        )
    parse_augmentation(config.augmentation)
    if info.streams:
        check_streamed(config.augmentation)
        if int(config.test_batch_size) > MOST_TEST_IMAGES:
            raise UserError(
                f"run-config key 'test-batch-size' is {config.test_batch_size} but must be at most "
                f"{MOST_TEST_IMAGES} with dataset '{config.dataset}', whose images are decoded "
                "while they are used"
            )


def _check_name(what: str, name: str, known: Collection[str], more: str = "") -> None:
    if name not in known:
        raise unknown(what, name, known, more)


def _check_partition_file(config: RunConfig) -> None:
    if bool(config.partition_file) != (config.partition == "file"):
        raise UserError(
            "partition 'file' and the key 'partition-file' (the file that lists each client's "
            "images) belong together: set both or none"
        )


def _check_own(config: RunConfig) -> None:
    if config.classes:
        class_names(config.classes)
    own = config.partition == "own"
    if config.partition != "folders" and (
        bool(config.classes) != own or (own and config.dataset != "images")
    ):
        raise UserError(
            "partition 'own' (every client has a folder of its own), dataset 'images' and the "
            "key 'classes' (their names) belong together: set all three or none"
        )
    measures = measures_of_models(config.analyses)
    if own and measures:
        raise UserError(
            f"measure '{measures[0]}' needs the clients' data, which with partition 'own' stays on "
            "their hosts; leave it out of 'analyses'"
        )


def _check_folders(config: RunConfig) -> None:
    if config.partition != "folders":
        return
    if config.dataset != "images":
        raise UserError(
            "partition 'folders' (every client has a folder in data-dir) is for dataset 'images', "
            f"but dataset is '{config.dataset}': set dataset='images', or choose another partition"
        )
    if config.pool_data is True:
        raise UserError(
            "run-config key 'pool-data' is true, but with partition 'folders' every client has "
            "training and test images of its own; set it to false"
        )


def _check_chosen_images(config: RunConfig) -> None:
    for key, value, off in (
        ("imbalance-factor", config.imbalance_factor, 1),
        ("validation-share", config.validation_share, 0),
    ):
        what = f"run-config key '{key}' is {value:g}, but"
        if value != off and fixes_images(config.partition):
            raise UserError(
                f"{what} with partition '{config.partition}' every client's images are given; set "
                f"it to {off}, or choose another partition"
            )
        if value != off and config.pool_data is True:
            raise UserError(
                f"{what} it chooses among the training images, and pool-data pools them with the "
                f"test images; set pool-data=false or {key}={off}"
            )


def _check_feature_skew(config: RunConfig) -> None:
    what = f"run-config key 'feature-skew' is '{config.feature_skew}', but"
    if config.feature_skew == "none":
        return
    if gives_images(config.partition):
        raise UserError(
            f"{what} with partition '{config.partition}' every client has images of its own; set "
            "it to 'none', or choose another partition"
        )
    if config.num_clients == 1:
        raise UserError(f"{what} there is only one client (num-clients=1); set it to 'none'")
    if find_dataset(config.dataset).streams:
        raise UserError(
            f"{what} data set '{config.dataset}' is decoded during training; set it to 'none', or "
            "choose another data set"
        )


def check_measures(name: str, analyses: str, bottleneck: int = 0) -> None:
    """Raise UserError for measures that need another model than the run has."""
    row = find_method(name)
    models = measures_of_models(analyses)
    if models and row.accuracy != GLOBAL:
        raise UserError(
            f"measure '{models[0]}' needs a global model, but method '{name}' has none: its "
            f"accuracy is that of {row.accuracy}"
        )
    for word in models:
        if FEATURES_OF[word] not in (0, bottleneck):
            raise UserError(
                f"measure '{word}' needs a model with {FEATURES_OF[word]} features before "
                f"its head: train with bottleneck={FEATURES_OF[word]} (here: {bottleneck})"
            )


def _check_states(config: RunConfig) -> None:
    kept = kept_by_clients(config.flat())
    if kept and config.checkpoint_every > 1:
        raise UserError(
            f"run-config key 'checkpoint-every' is {config.checkpoint_every}, but with this method "
            f"clients keep state ({kept}) of their last two rounds only, so a run can resume only "
            "from its last round; set it to 1, or to 0 for no checkpoints"
        )


def _check_blend(config: RunConfig, row: Method) -> None:
    if config.regulariser == "none":
        if row.loss.combine == PERTURB:
            raise UserError(
                f"run-config key 'regulariser' is 'none' but method '{config.method}' moves "
                f"weights along '{row.loss.regulariser}'; leave it at 'auto' and set "
                "'fedsol-rho' to 0 instead"
            )
        return
    blended = config.regulariser != row.loss.regulariser or row.loss.combine == BLEND
    if blended and float(config.beta) > 1:
        raise UserError(
            f"run-config key 'beta' is {config.beta} but blends beta * loss + (1 - beta) * "
            f"{config.regulariser}, so it must be between 0 and 1"
        )


def _check_sampling(config: RunConfig) -> None:
    classes = find_dataset(config.dataset).num_classes
    total = config.num_clients * config.shards
    if config.partition == "shards" and classes and total % classes:
        raise UserError(
            f"{config.num_clients} clients x {config.shards} shards = {total} shards cannot be "
            f"divided evenly among the {classes} classes of {config.dataset}; set num-clients to a "
            f"multiple of {classes // gcd(classes, config.shards)}, shards to a multiple of "
            f"{classes // gcd(classes, config.num_clients)}, or partition to 'iid' or 'lda'"
        )
    cohort = cohort_size(config.training_clients, config.participation)
    if config.min_replies > cohort:
        raise UserError(
            f"min-replies is {config.min_replies} but only {cohort} clients are sampled in a round "
            f"(participation {config.participation:g} of {config.training_clients} clients)"
        )


def _check_roles(config: RunConfig) -> None:
    """Raise UserError for numbers of slow or new clients that do not fit the others."""
    if config.new_clients >= config.num_clients:
        raise UserError(
            f"run-config key 'new-clients' is {config.new_clients} but must be less than "
            f"num-clients ({config.num_clients})"
        )
    if config.straggler_share and config.straggler_epochs > int(config.local_epochs):
        raise UserError(
            f"run-config key 'straggler-epochs' is {config.straggler_epochs} but must be at most "
            f"local-epochs ({config.local_epochs})"
        )


def _check_device(config: RunConfig) -> None:
    if not re.fullmatch(r"auto|cpu|cuda(:(0|[1-9][0-9]?))?", config.device):
        raise UserError(
            f"run-config key 'device' is '{config.device}' but must be auto, cpu, cuda or cuda:N"
        )


def _check_run_name(config: RunConfig) -> None:
    if config.run_name and not is_folder_name(config.run_name):
        raise UserError(
            f"run-config key 'run-name' is '{config.run_name}' but must be a plain folder "
            f"name of at most {LONGEST_NAME} bytes"
        )
