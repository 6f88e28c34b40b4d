"""`fedapp export`: the final model of a run as one file that is used without fedapp.

The file is a program: the network with its weights, the normalisation of its images and the softmax
of its logits, so that it gives the scores of `fedapp classify` for images as they are stored.
"""

import importlib.util
import io
import json
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

import fedapp
from fedapp.core.errors import UserError
from fedapp.core.extension_files import own_mistake
from fedapp.core.files import write_named
from fedapp.data.batches.in_memory import Normaliser
from fedapp.models.quick_layers import use_plain_layers
from fedapp.results.run_directory import RunDirectory
from fedapp.results.which_model import FINAL
from fedapp.trained_models.classify import TrainedModel, model_name

PYTORCH, ONNX = ".pt2", ".onnx"
DESCRIPTION = "fedapp.json"  # the name in the file of what the program takes and gives
_ONNX_PACKAGES = ("onnx", "onnxscript")


@dataclass(frozen=True)
class Exported:
    """A written program, and whether its answers depend on the batch (BatchNorm by the batch)."""

    file: Path
    depends_on_batch: bool


class _Program(nn.Module):
    """A model with the normalisation of its images, and the softmax of its logits."""

    scale: Tensor  # [channels], as `shift`
    shift: Tensor

    def __init__(self, trained: TrainedModel) -> None:
        super().__init__()
        self.model, form = trained.model, trained.images
        normalise = Normaliser(form.mean, form.std, 1, trained.device)
        self.register_buffer("scale", normalise.scale)  # goes to a device with the weights
        self.register_buffer("shift", normalise.shift)

    def forward(self, images: Tensor) -> Tensor:
        """Map uint8 [n, side, side, channels] to scores [n, C]."""
        inputs = images.to(torch.float32) * self.scale + self.shift
        _, logits = self.model(inputs.permute(0, 3, 1, 2))
        scores: Tensor = logits.float().softmax(dim=1)
        return scores


def export_model(
    path: Path, file: Path | None = None, which: str = FINAL, personal: Path | None = None
) -> Exported:
    """Write the final model of a run as a program for PyTorch or ONNX.

    It maps uint8 [n, side, side, channels] to scores [n, C] on the CPU. The names of the classes
    are in its description, a JSON text in the file.

    Args:
        path: the run directory.
        file: new file that ends in .pt2 or .onnx; None: RUN/model.pt2, which is replaced, or
            for another than the global model a file with its name, such as
            RUN/model-calibrated.pt2.
        which: final, best (of keep-best) or calibrated (with the head of `fedapp calibrate`).
        personal: the file of a client's model, of `fedapp personalise`, to export instead.

    Raises:
        UserError: the file exists, has another ending or cannot be written; the packages for ONNX
            are missing; the run has no such model; or a network of the user's own cannot be
            exported.
    """
    run = RunDirectory.load(path)
    if file is not None:
        _check_file(file)
    name, _ = model_name(run, which, personal)
    chosen = file or run.path / f"{'-'.join(filter(None, ('model', name)))}{PYTORCH}"
    trained = TrainedModel.of(run, "cpu", which, personal)
    write = _onnx if chosen.suffix == ONNX else _pytorch
    try:
        content = write(_program(trained), _description(run, trained))
    except Exception as error:
        reason = own_mistake(error) or f"{type(error).__name__}: {error}"
        raise UserError(
            f"the network of run '{run.name}' cannot be exported as {chosen.suffix}: "
            f"{reason.splitlines()[0]}"
        ) from error
    write_named(chosen, content, f"a {chosen.suffix} file")
    return Exported(chosen, trained.depends_on_batch)


def _check_file(file: Path) -> None:
    """Raise UserError unless a file is new, and of a kind that can be written."""
    if file.suffix not in (PYTORCH, ONNX):
        raise UserError(f"'{file}' must end in {PYTORCH} (for PyTorch) or {ONNX}")
    if file.exists():
        raise UserError(f"{file} exists already; name a new file")
    missing = [name for name in _ONNX_PACKAGES if importlib.util.find_spec(name) is None]
    if file.suffix == ONNX and missing:
        raise UserError(
            f"{file} needs packages that are not installed: pip install {' '.join(missing)}; or "
            f"name a {PYTORCH} file, which needs none"
        )


def _program(trained: TrainedModel) -> ExportedProgram:
    """Trace a model on the CPU; it gets plain layers, and weights in the usual order in memory."""
    use_plain_layers(trained.model)
    program = _Program(trained).eval().requires_grad_(False)
    program.to(memory_format=torch.contiguous_format)
    form = trained.images
    images = torch.zeros(2, form.side, form.side, form.channels, dtype=torch.uint8)
    with redirect_stderr(io.StringIO()):  # where PyTorch prints all layers before it fails
        traced = torch.export.export(program, (images,), dynamic_shapes=({0: Dim("n")},))
    for node in traced.graph.nodes:
        node.meta.pop("stack_trace", None)  # it names folders of this machine
    return traced


def _description(run: RunDirectory, trained: TrainedModel) -> str:
    """Return what a program takes and gives, as JSON."""
    form = trained.images
    return json.dumps(
        {
            "classes": form.classes,
            "side": form.side,
            "channels": form.channels,
            "depends_on_batch": trained.depends_on_batch,
            "method": trained.config.method,
            "run": run.name,
            "fedapp": fedapp.__version__,
            "torch": torch.__version__,
        }
    )


def _pytorch(program: ExportedProgram, description: str) -> bytes:
    content = io.BytesIO()
    torch.export.save(program, content, extra_files={DESCRIPTION: description})
    return content.getvalue()


def _onnx(program: ExportedProgram, description: str) -> bytes:
    made: Any = torch.onnx.export(
        program, dynamo=True, verbose=False, input_names=["images"], output_names=["scores"]
    )
    made.model.metadata_props[DESCRIPTION] = description
    return bytes(made.model_proto.SerializeToString())
