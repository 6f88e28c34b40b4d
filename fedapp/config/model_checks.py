"""Checks of combinations of model, data set and method; each error is one sentence."""

from fedapp.config.auto import default_model
from fedapp.config.run_config import RunConfig
from fedapp.core.errors import UserError
from fedapp.data.datasets import find_dataset
from fedapp.methods.row import GLOBAL, Method
from fedapp.models.architectures import check_architecture
from fedapp.models.backbones import BACKBONES, fitting_backbones, needs_two
from fedapp.models.groups import MODEL_GROUPS, ModelGroup, find_group
from fedapp.models.heads import HEADS, find_kind
from fedapp.models.initial import IMAGENET, IMAGENET_MODELS

_NEEDS = {
    "has_batch_norm": "normalisation layers",
    "has_basic_blocks": "the basic blocks of a ResNet",
}


def check_group(config: RunConfig, method: Method) -> None:
    """Raise UserError if the method does not fit the model group or the keys about it."""
    if config.eval_rule == "proto" and "rule" not in method.client.options:
        raise UserError(
            f"run-config key 'eval-rule' is 'proto', but the clients of method '{config.method}' "
            "receive no prototypes to compare images with; leave it at 'auto'"
        )
    if method.heterogeneous is None or not config.model_group:
        return
    group = find_group(config.model_group)
    _check_images(config, group)
    if method.heterogeneous.same_heads and not group.same_heads:
        fitting = ", ".join(name for name, each in MODEL_GROUPS.items() if each.same_heads)
        raise UserError(
            f"method '{config.method}' averages the clients' heads, but the clients of model group "
            f"'{config.model_group}' have heads of different shapes; choose one of {fitting}"
        )
    if config.head_final_relu and group.same_heads:
        raise UserError(
            "run-config key 'head-final-relu' is for heads of different shapes, but those of model "
            f"group '{config.model_group}' are alike; leave it false"
        )
    _check_batch_size("the networks of model groups have", config.batch_size)


def _check_images(config: RunConfig, group: ModelGroup) -> None:
    """Raise UserError if a client's network cannot take images of the data set's size, if known."""
    side = _known_side(config)
    if side:
        for name in group.architectures[: config.num_clients]:
            check_architecture(name, side)


def check_trained_head(name: str, row: Method) -> None:
    """Raise UserError if a method's head is frozen, so that it cannot be calibrated."""
    if find_kind(row.head.name).frozen:
        raise UserError(
            f"method '{name}' has a frozen head, which its features were trained for: "
            "calibrate a method whose head is trained, such as fedavg"
        )


def check_best(config: RunConfig, row: Method) -> None:
    """Raise UserError if the best model is to be kept, and the accuracy is not that of a model."""
    if config.keep_best and row.accuracy != GLOBAL:
        raise UserError(
            "run-config key 'keep-best' keeps the best global model, but the accuracy of method "
            f"'{config.method}' is that of {row.accuracy}: set it to false"
        )


def check_statistics(config: RunConfig, row: Method) -> None:
    """Raise UserError if nobody could use the class statistics, or other keys are to hide them."""
    if not config.class_statistics:
        return
    if not row.has_global_model:
        raise UserError(
            "run-config key 'class-statistics' is for the calibration of a global model, and the "
            f"clients of method '{config.method}' have models of their own: set it to false"
        )
    check_trained_head(config.method, row)
    if config.secure_aggregation != "off" or config.dp_clip:
        raise UserError(
            "run-config key 'class-statistics' shows the server means of each client's features, "
            "which secure-aggregation and dp-clip are to hide: set it to false"
        )


def check_model(config: RunConfig, row: Method) -> None:
    """Raise UserError if the method does not fit its model or the images."""
    if config.bottleneck_layers > 1 and not config.bottleneck and not config.model_group:
        raise UserError(
            f"run-config key 'bottleneck-layers' is {config.bottleneck_layers} but 'bottleneck', "
            "the number of their features, is 0, so the model has no such layers; set it too, such "
            "as to 256 for MOON's projection head"
        )
    fitting = fitting_backbones(row.needs)
    if config.model not in fitting:
        raise UserError(
            f"method '{config.method}' needs {_NEEDS[row.needs]}: its model must be one of "
            f"{', '.join(fitting)}, not '{config.model}'"
        )
    side = _known_side(config)
    if side and not config.model_group:  # otherwise checked once the data are loaded
        check_single_image_batches(config, side)


def check_initial(config: RunConfig) -> None:
    """Raise UserError for ImageNet weights that do not fit the model."""
    if config.initial_model == IMAGENET and config.model not in IMAGENET_MODELS:
        raise UserError(
            f"initial-model 'imagenet' needs model {' or '.join(IMAGENET_MODELS)}, not "
            f"'{config.model}'"
        )


def check_head(config: RunConfig, row: Method) -> None:
    """Raise UserError if the method's head needs more features than the model has."""
    if config.model_group:
        return
    classes = find_dataset(config.dataset).num_classes
    width = config.bottleneck or BACKBONES[config.model].feature_dim
    need = HEADS[row.head.name].fewest_features(classes or 1)
    if width < need:
        raise UserError(
            f"method '{config.method}' needs at least {need} features for its head of {classes} "
            f"classes, but model '{config.model}' has {width}"
            + (" (run-config key 'bottleneck')" if config.bottleneck else "")
        )


def check_model_keys(config: RunConfig, row: Method) -> None:
    """Raise UserError for keys about models that the method does not use.

    A method trains either one model for all clients or a model per client.
    """
    has_own = row.heterogeneous is not None
    if not has_own and (config.model_group or config.feature_dim != "auto"):
        raise UserError(
            "run-config keys 'model-group' and 'feature-dim' belong to methods with a model per "
            f"client, and method '{config.method}' has one model for all; "
            "leave them at their defaults"
        )
    defaults = {
        "model": (default_model(config.dataset, row.needs), "set 'model-group' instead"),
        "bn": ("batch", "leave it at 'batch', which every 'model-group' has"),
        "bottleneck": (0, "set 'feature-dim' instead"),
        "bottleneck-layers": (1, "leave it at 1"),
        "initial-model": ("", "leave it empty"),
    }
    values = config.flat()
    for key, (default, advice) in defaults.items():
        if has_own and values[key] != default:
            raise UserError(
                f"run-config key '{key}' is {values[key]!r} but the clients of method "
                f"'{config.method}' have architectures of their own; {advice}"
            )


def _known_side(config: RunConfig) -> int | None:
    """Return the side of the images in pixels, if the configuration tells it."""
    return config.image_size or find_dataset(config.dataset).image_size


def check_single_image_batches(config: RunConfig, image_size: int) -> None:
    """Raise UserError for batches of one image if a BatchNorm sees one value per image."""
    if needs_two(config.model, image_size, config.bn):
        images = f"{image_size}x{image_size} images"
        _check_batch_size(f"model '{config.model}' on {images} has", config.batch_size)


def _check_batch_size(networks: str, batch_size: object) -> None:
    """Raise UserError for batches of one image; `networks` names the networks for the message."""
    if batch_size == 1:
        raise UserError(
            f"run-config key 'batch-size' is 1, but {networks} BatchNorm, which needs 2 images or "
            "more"
        )
