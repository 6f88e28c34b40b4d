"""Initial weights from a file, a finished run, or torchvision's ImageNet weights.

Only trained weights are loaded. A frozen head keeps the method's values, but for a learned scale. A
head for other classes keeps its random initial values, and so does a bottleneck if the file has an
extractor only. A missing or unsuitable file ends the run before it starts, instead of a silent use
of random weights.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from fedapp.core.errors import UserError
from fedapp.core.paths import expanded, readable
from fedapp.models.model import Model

IMAGENET = "imagenet"
IMAGENET_MODELS = ("resnet18", "resnet18-imagenet-stem")
_RUN_FILE = "model.safetensors"
_COUNTER = "num_batches_tracked"  # of BatchNorm; runs do not store it


def find_initial(name: str, data_dir: str, download: bool = False) -> Path | None:
    """Return the file of `initial-model`, a relative one in `data_dir` first; None for "".

    `fedapp run` has made the name absolute if it exists in the current folder.

    "imagenet" is torchvision's file for ResNet-18 in `data_dir` or in PyTorch's cache; `download`
    fetches it to the cache. Raises UserError if there is no such file.
    """
    if not name:
        return None
    if name == IMAGENET:
        return _imagenet(data_dir, download)
    candidates = [expanded(data_dir, "data-dir") / name, expanded(name, "initial-model")]
    for candidate in candidates:
        with readable(candidate, "initial-model"):
            path = candidate / _RUN_FILE if candidate.is_dir() else candidate
            if path.is_file():
                return path
    raise UserError(
        f"run-config key 'initial-model' is '{name}' but there is no such file or run directory "
        f"(looked for {candidates[0].absolute()} and {candidates[1].absolute()})"
    )


def load_initial(model: Model, path: Path | None) -> Model:
    """Load the weights in `path`, if any, into a model in place, and return it.

    Args:
        model: keeps its own head if the head is frozen or has another shape, and its own bottleneck
            if the file has an extractor only.
        path: model.safetensors of a run, or a PyTorch state dict with torchvision's names.

    Raises:
        UserError: the file is not readable as weights, or they belong to another network.
    """
    if path is None:
        return model
    stored = _body_and_head(_read(path))
    tensors = model.state_dict()
    extractor_only = all(name.startswith("extractor.") for name in stored)
    new = ("head.", "bottleneck.") if extractor_only else ("head.",)
    for name, tensor in tensors.items():
        fits = name in stored and stored[name].shape == tensor.shape
        if not fits and not name.startswith(new) and not name.endswith(_COUNTER):
            if name.endswith("running_mean"):
                raise UserError(
                    f"{path} has no running averages of BatchNorm, because its model normalised "
                    "by the batch; set bn='batch'"
                )
            shape = list(stored[name].shape) if name in stored else "nothing"
            raise UserError(
                f"{path} does not fit the model: '{name}' is {list(tensor.shape)} and {shape} in "
                "the file; take the model that the file was saved from (for ImageNet weights "
                "and small images: resnet18-imagenet-stem)"
            )
    kept = _kept(model, stored)
    loaded = {name: stored[name] for name in tensors if name in stored and name not in kept}
    model.load_state_dict(loaded, strict=False)
    return model


def _kept(model: Model, stored: Mapping[str, Tensor]) -> set[str]:
    """Return the names of the head's tensors that are not loaded."""
    if model.head.frozen:
        return {name for name, tensor in model.named_parameters() if not tensor.requires_grad}
    head = {name: t for name, t in model.state_dict().items() if name.startswith("head.")}
    fits = all(name in stored and stored[name].shape == t.shape for name, t in head.items())
    return set() if fits else set(head)


def digest(path: Path | None) -> str:
    """Return a hash of a file's content, for server and nodes to compare; "none" without file."""
    if path is None:
        return "none"
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def _imagenet(data_dir: str, download: bool) -> Path:
    from torchvision.models import ResNet18_Weights

    url = ResNet18_Weights.IMAGENET1K_V1.url
    name = url.rsplit("/", 1)[1]
    cache = Path(torch.hub.get_dir()) / "checkpoints" / name
    for path in (expanded(data_dir, "data-dir") / name, cache):
        if path.is_file():
            return path
    if not download:
        raise UserError(
            f"initial-model is 'imagenet' but {name} is neither in data-dir nor in {cache.parent}; "
            f"put the file from {url} there, or set download=true"
        )
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        torch.hub.download_url_to_file(url, str(cache), hash_prefix="f37072fd", progress=False)
    except (OSError, RuntimeError) as error:
        raise UserError(f"{url} cannot be fetched: {error}") from None
    return cache


def _read(path: Path) -> Mapping[str, Tensor]:
    """Read tensors by name from a safetensors file or a PyTorch state dict."""
    from safetensors.torch import load_file

    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        stored = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # the unpickler raises many types for other files
        raise UserError(f"{path} cannot be read as weights: {error}") from None
    if not isinstance(stored, Mapping) or not all(isinstance(v, Tensor) for v in stored.values()):
        raise UserError(
            f"{path} must contain a state dict (tensors by name) but contains something else"
        )
    return stored


def _body_and_head(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename torchvision's tensors to the model's names; leave out its classifier."""
    if any(name.startswith("extractor.") for name in stored):
        return dict(stored)
    return {f"extractor.{n}": t for n, t in stored.items() if not n.startswith("fc.")}
