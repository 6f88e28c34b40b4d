"""`fedapp calibrate`: retrain the head of a finished run on virtual features (CCVR).

Of all layers the head is biased most towards the classes of the last clients. After the training
each client gives the mean and covariance of its features of each class; they are merged to one
Gaussian per class, from which features are drawn that train the head. The extractor stays. Where
the clients' data are on their hosts, the run asked them for these statistics.
Source: Luo et al. 2021, NeurIPS, algorithm 1; the rate and the epochs of the head are ours.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from clients.class_statistics import feature_statistics
from clients.training.sgd import FusedSGD
from fedapp.analysis import class_statistics
from fedapp.analysis.formulas.gaussians import ClassGaussians
from fedapp.config.model_checks import check_trained_head
from fedapp.config.resolve import parse_config
from fedapp.config.run_config import RunConfig
from fedapp.core.errors import UserError
from fedapp.core.files import json_text, safetensors_bytes, write_atomically
from fedapp.core.progress import tracked
from fedapp.core.rng import Stream, torch_rng
from fedapp.methods.table import find_method
from fedapp.results.final_model import made_from, model_file, statistics_file
from fedapp.results.folders import check_writable, writing
from fedapp.results.run_directory import RunDirectory
from fedapp.results.which_model import CALIBRATED
from fedapp.runtime.process.context import ProcessContext
from fedapp.runtime.process.earlier_run import reopened
from fedapp.runtime.process.evaluation import evaluate_classes
from fedapp.runtime.process.global_model import load_weights
from fedapp.trained_models.finished_run import OVERRIDABLE, run_values
from strategies.threads import threads

MOST_FEATURES, MOST_EPOCHS = 100_000, 10_000


@dataclass(frozen=True)
class Retraining:
    """How the head is retrained; momentum and weight decay are those of the run."""

    features: int = 500  # virtual features per class
    epochs: int = 10
    lr: float = 0.01
    batch_size: int = 64

    def __post_init__(self) -> None:
        """Raise UserError for a value that trains nothing, or that no memory holds."""
        for name, most in (("features", MOST_FEATURES), ("epochs", MOST_EPOCHS)):
            value = getattr(self, name)
            if not (isinstance(value, int) and 1 <= value <= most):
                raise UserError(f"{name} is {value!r} but must be a whole number, 1 to {most:,}")
        if not (isinstance(self.lr, int | float) and 0 < self.lr < math.inf):
            raise UserError(f"lr is {self.lr!r} but must be a number above 0")


def calibrate(
    path: Path, overrides: Mapping[str, Any], retraining: Retraining = Retraining()
) -> dict[str, Any]:
    """Retrain the head of a run's final model on virtual features, and test it.

    Writes RUN/calibrated.safetensors, the whole model, and RUN/calibration.json.

    Args:
        path: the run directory.
        overrides: values of some of `OVERRIDABLE`; other keys have the run's values.
        retraining: how the head is retrained.

    Returns:
        Accuracy, loss and accuracy of each class before and after, and the settings.

    Raises:
        UserError: the run's model is missing or damaged, its head is frozen, its clients have
            models of their own, or their data on other hosts and it has not asked them for the
            statistics of their features, or a key may not be changed.
    """
    run = RunDirectory.load(path)
    check_writable(run.path, "run directory")
    config = _configuration(run, overrides)
    process = reopened(run, config)
    load_weights(process.model, run)
    generator = torch_rng(config.seed, Stream.ANALYSIS, config.num_rounds)
    with threads(config.threads):
        before = _tested(process)
        drawn = _drawn(_gaussians(run, process), retraining.features, generator, run)
        _retrain(process.model.head, drawn, config, retraining, generator)
        results = {"before": before, "after": _tested(process), **asdict(retraining)}
    metadata = process.metadata() | made_from(run)
    model = safetensors_bytes(process.model.state_dict(), metadata)
    with writing(run.path):
        write_atomically(model_file(run, CALIBRATED), model)
        write_atomically(run.path / "calibration.json", json_text(results, 2).encode())
    return results


def _configuration(run: RunDirectory, overrides: Mapping[str, Any]) -> RunConfig:
    """Return the run's configuration; raises UserError if its head cannot be calibrated here."""
    values = run_values(run, overrides, OVERRIDABLE)
    config = parse_config(values)
    if not find_method(config.method).has_global_model:
        raise UserError(
            "calibration retrains the head of a global model, and the clients of method "
            f"'{config.method}' have models of their own"
        )
    check_trained_head(config.method, find_method(config.method))
    if float(config.dp_noise):
        raise UserError(
            f"the head of {run.path} cannot be calibrated: that takes statistics of all clients' "
            "images, which dp-noise is to hide"
        )
    return config


def _tested(process: ProcessContext) -> dict[str, Any]:
    """Return accuracy, loss and accuracy of each class on the test set."""
    classes = process.data.dataset.num_classes
    return asdict(evaluate_classes(process.model, process.data.test_batches(), classes))


def _gaussians(run: RunDirectory, process: ProcessContext) -> ClassGaussians:
    """Return the merged statistics of all clients' features of their training images.

    Raises:
        UserError: the clients' data are on their own hosts, and the run has not asked for them.
    """
    form = process.model.get_parameter("head.weight").shape
    if (saved := class_statistics.load(run, *form)) is not None:
        return saved
    if process.config.partition == "own":
        raise UserError(
            f"the data of the clients of {run.path} stay on their hosts (partition 'own'), and the "
            "run has not asked them for what calibration needs: train with class-statistics=true, "
            "or resume the completed run with it, if it has checkpoints"
        )
    merged = ClassGaussians(*form)
    for client in tracked(range(process.config.training_clients), "features of clients"):
        merged.add(feature_statistics(process.model, process.data.own_images(client)))
    return merged


def _drawn(
    gaussians: ClassGaussians, count: int, generator: torch.Generator, run: RunDirectory
) -> tuple[Tensor, Tensor]:
    """Return virtual features and labels; raises UserError if statistics are not of features."""
    try:
        return gaussians.draw(count, generator)
    except torch.linalg.LinAlgError as error:
        sent = statistics_file(run).is_file()
        what = f"{statistics_file(run)} has a scatter" if sent else "a class has a scatter"
        more = ": a client has sent a wrong one" if sent else ""
        raise UserError(f"{what} that is that of no features ({error}){more}") from None


def _retrain(
    head: nn.Module,
    data: tuple[Tensor, Tensor],
    config: RunConfig,
    retraining: Retraining,
    generator: torch.Generator,
) -> None:
    """Train a head on features [n, d] and labels [n], in place; raises UserError if it diverges."""
    parameters = list(head.parameters())
    features, labels = (part.to(parameters[0].device) for part in data)
    momentum, decay = float(config.momentum), float(config.weight_decay)
    optimiser = FusedSGD(parameters, retraining.lr, momentum, decay)
    for _ in range(retraining.epochs):
        order = torch.randperm(len(labels), generator=generator).to(labels.device)
        for chosen in order.split(retraining.batch_size):
            optimiser.zero_grad()
            nn.functional.cross_entropy(head(features[chosen]), labels[chosen]).backward()
            optimiser.step()
    if not all(bool(parameter.isfinite().all()) for parameter in parameters):
        raise UserError(f"the head diverges at lr {retraining.lr:g}; give a smaller --lr")
