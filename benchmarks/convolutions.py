"""What the quicker convolutions and ReLUs of `fedapp.models.quick_layers` save on this processor.

    python benchmarks/convolutions.py [--batch-size 50] [--turns 5]

Prints two Markdown tables: milliseconds of single layers (forward and backward), and of whole
training steps, with PyTorch's layers and with those of fedapp, in float32 and bfloat16. One
thread; medians of turns in which the variants alternate. ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 shows
what a processor without AMX does.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from runs_in_turn import markdown
from torch import nn

from fedapp.core.hardware import keep_memory
from fedapp.models.model import build_model
from fedapp.models.quick_layers import use_plain_layers, use_quick_layers

LAYERS = (  # inputs, outputs, side of the image, kernel, stride
    (512, 512, 4, 1, 1), (512, 1024, 2, 1, 1), (1024, 1024, 2, 1, 1),
    (256, 512, 4, 3, 1), (512, 512, 4, 3, 1), (512, 512, 2, 3, 1),
    (512, 512, 1, 3, 1), (256, 512, 2, 3, 2),
)  # fmt: skip
MODELS = ("mobilenet", "mobilenetv2", "vgg11", "resnet18")
PRECISIONS = {"fp32": False, "bf16": True}
REPEATS = 10  # steps of a layer per turn; two of a whole model

Step = Callable[[], None]


def step_of(network: nn.Module, images: torch.Tensor, bfloat16: bool) -> Step:
    """Return a function that computes the gradients of a network, as in training."""
    images = images.contiguous(memory_format=torch.channels_last).requires_grad_()

    def step() -> None:
        images.grad = None
        network.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            outputs = network(images)
            logits = outputs[1] if isinstance(outputs, tuple) else outputs
            logits.float().square().mean().backward()

    return step


def layer(shape: tuple[int, int, int, int, int], batch: int, quick: bool, bfloat16: bool) -> Step:
    """Return a step of one convolution."""
    inputs, outputs, side, kernel, stride = shape
    network = nn.Sequential(nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False))
    if quick:
        use_quick_layers(network)
    network.to(memory_format=torch.channels_last)
    return step_of(network, torch.randn(batch, inputs, side, side), bfloat16)


def whole(name: str, batch: int, quick: bool, bfloat16: bool) -> Step:
    """Return a step of one backbone with a linear head."""
    network = build_model(name, "linear", 3, 32, 100, seed=0)
    if not quick:
        use_plain_layers(network)
    return step_of(network, torch.randn(batch, 3, 32, 32), bfloat16)


def milliseconds(step: Step, repeats: int) -> float:
    """Return the wall time of a step."""
    started = time.perf_counter()
    for _ in range(repeats):
        step()
    return 1000 * (time.perf_counter() - started) / repeats


def row(name: str, variants: list[Step], turns: int, repeats: int) -> list[str]:
    """Measure the variants in turns."""
    for step in variants:
        step()  # the first one allocates memory and chooses kernels
    times = [[milliseconds(step, repeats) for step in variants] for _ in range(turns)]
    return [name, *(f"{statistics.median(column):.1f}" for column in zip(*times, strict=True))]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--batch-size", type=int, default=50)
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    size = options.batch_size
    torch.set_num_threads(1)
    keep_memory()
    kinds = [(quick, bf16) for bf16 in PRECISIONS.values() for quick in (False, True)]
    columns = [f"{name}, {made}" for name in PRECISIONS for made in ("PyTorch", "fedapp")]
    rows = [
        row(
            f"{inputs} to {outputs} channels, {side}x{side}, kernel {kernel}, stride {stride}",
            [layer((inputs, outputs, side, kernel, stride), size, *kind) for kind in kinds],
            options.turns, REPEATS,
        )
        for inputs, outputs, side, kernel, stride in LAYERS
    ]  # fmt: skip
    print(markdown(["layer", *columns], rows))
    rows = [
        row(name, [whole(name, size, *kind) for kind in kinds], options.turns, 2) for name in MODELS
    ]
    print(markdown(["training step", *columns], rows))


if __name__ == "__main__":
    main()
