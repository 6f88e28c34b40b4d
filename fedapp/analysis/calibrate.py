"""`fedapp calibrate`: retrain the head of a finished run on virtual features (CCVR).

Of all layers the head is biased most towards the classes of the last clients. After the training
each client gives the mean and covariance of its features of each class, the server merges them to
one Gaussian per class, draws features from these and trains the head on them. The extractor stays.
Source: Luo et al. 2021, NeurIPS, algorithm 1; the rate and the epochs of the head are ours.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from clients.training.evaluation import predict
from clients.training.sgd import FusedSGD
from fedapp.analysis.formulas.gaussians import ClassGaussians
from fedapp.analysis.global_run import OVERRIDABLE, run_values
from fedapp.config.resolve import parse_config
from fedapp.config.run_config import RunConfig
from fedapp.core.errors import UserError
from fedapp.core.files import json_text, safetensors_bytes, write_atomically
from fedapp.core.progress import tracked
from fedapp.core.rng import Stream, torch_rng
from fedapp.methods.table import find_method
from fedapp.models.heads import find_kind
from fedapp.results.final_model import made_from, model_file
from fedapp.results.folders import check_writable, writing
from fedapp.results.run_directory import RunDirectory
from fedapp.runtime.evaluation import evaluate_classes
from fedapp.runtime.global_model import load_weights
from fedapp.runtime.opening import reopened
from fedapp.runtime.process import ProcessContext

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
            models of their own or their data on other hosts, or a key may not be changed.
    """
    run = RunDirectory.load(path)
    check_writable(run.path, "run directory")
    config = _configuration(run, overrides)
    process = reopened(run, config)
    load_weights(process.model, run)
    results: dict[str, Any] = {"before": _tested(process)}
    generator = torch_rng(config.seed, Stream.ANALYSIS, config.num_rounds)
    features, labels = _gaussians(process).draw(retraining.features, generator)
    _retrain(process.model.head, (features, labels), config, retraining, generator)
    results |= {"after": _tested(process), **asdict(retraining)}
    metadata = process.metadata() | made_from(run)
    model = safetensors_bytes(process.model.state_dict(), metadata)
    with writing(run.path):
        write_atomically(model_file(run, calibrated=True), model)
        write_atomically(run.path / "calibration.json", json_text(results, 2).encode())
    return results


def _configuration(run: RunDirectory, overrides: Mapping[str, Any]) -> RunConfig:
    """Return the run's configuration; raises UserError if its head cannot be calibrated here."""
    remedy = "cannot be calibrated here: nothing reads their features there"
    config = parse_config(run_values(run, overrides, OVERRIDABLE, remedy))
    if find_kind(find_method(config.method).head.name).frozen:
        raise UserError(
            f"method '{config.method}' has a frozen head, which its features were trained for: "
            "calibrate a method whose head is trained, such as fedavg"
        )
    return config


def _tested(process: ProcessContext) -> dict[str, Any]:
    """Return accuracy, loss and accuracy of each class on the test set."""
    classes = process.data.dataset.num_classes
    return asdict(evaluate_classes(process.model, process.data.test_batches(), classes))


def _gaussians(process: ProcessContext) -> ClassGaussians:
    """Return the merged statistics of all clients' features of their training images."""
    weight = process.model.get_parameter("head.weight")
    merged = ClassGaussians(*weight.shape)
    for client in tracked(range(process.config.num_clients), "features of clients"):
        predictions = list(predict(process.model, process.data.own_images(client)))
        features = torch.cat([each.features.float().cpu() for each in predictions])
        merged.add(features, torch.cat([each.labels.cpu() for each in predictions]))
    return merged


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
