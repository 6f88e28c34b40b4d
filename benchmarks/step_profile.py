"""Where the milliseconds of a local training step go, beside a bare PyTorch step.

    python benchmarks/step_profile.py [--model cnn] [--batch-size 10] [--epoch 5] [--steps 200]

Prints a Markdown table of milliseconds per step on one thread of the CPU, medians of five turns.
"Bare" is a model and `torch.optim.SGD` as a tutorial writes them; "tuned" has the layout, the
convolutions and the fused optimiser of the benchmark's plain loop; "fedapp" is FedAvg's local
training with crops and flips, for clients of one epoch of `--epoch` steps. All keep freed memory.
The lines by kind of operator are from torch.profiler, scaled to the wall time without it.
"""

import argparse
import statistics
import time
from collections import Counter
from collections.abc import Callable

import torch
from runs_in_turn import markdown
from torch import nn
from torch.profiler import ProfilerActivity, profile

from clients.training.local_training import FrozenModels, LocalSettings, train
from clients.training.objective import Objective
from fedapp.core.hardware import keep_memory
from fedapp.data.batches.in_memory import ClientBatches
from fedapp.models.model import build_model
from fedapp.models.quick_layers import use_plain_layers

TURNS, SAMPLES, CLASSES, SIDE = 5, 500, 10, 32
KINDS = {
    "convolutions, backward": ("convolution_backward",),
    "convolutions, forward": ("mkldnn_convolution", "convolution", "conv2d"),
    "linear layers": ("addmm", "mm", "linear"),
    "pooling and activations": ("max_pool2d", "relu", "threshold", "clamp_min"),
    "normalisation layers": ("batch_norm",),
    "optimiser": ("fused_sgd", "_foreach", "Optimizer"),
    "loss": ("softmax", "nll_loss", "cross_entropy"),
}


def kind_of(operator: str) -> str:
    """Return the kind that an operator's time is counted for."""
    return next((k for k, names in KINDS.items() if any(n in operator for n in names)), "other")


def build(model: str, layout: torch.memory_format) -> nn.Module:
    """Build a model with a linear head."""
    return build_model(model, "linear", 3, SIDE, CLASSES, seed=0).to(memory_format=layout)


def plain(model: str, batch: int, tuned: bool) -> Callable[[int], None]:
    """Return a function that takes steps on random images as a plain loop does."""
    layout = torch.channels_last if tuned else torch.contiguous_format
    network = build(model, layout)
    if not tuned:
        use_plain_layers(network)
    images = torch.randn(SAMPLES, 3, SIDE, SIDE).contiguous(memory_format=layout)
    labels = torch.randint(0, CLASSES, (SAMPLES,))
    options = {"fused": True} if tuned else {}
    optimiser = torch.optim.SGD(network.parameters(), 0.01, 0.9, weight_decay=1e-5, **options)

    def run(steps: int) -> None:
        for _ in range(steps):
            chosen = torch.randint(0, SAMPLES, (batch,))
            optimiser.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(network(images[chosen])[1], labels[chosen]).backward()
            optimiser.step()

    return run


def ours(model: str, batch: int, epoch: int) -> Callable[[int], None]:
    """Return a function that takes steps as clients of FedAvg with `epoch` steps each do."""
    network = build(model, torch.channels_last)
    images = torch.randint(0, 256, (batch * epoch, SIDE, SIDE, 3), dtype=torch.uint8)
    labels = torch.randint(0, CLASSES, (batch * epoch,))
    half = (0.5, 0.5, 0.5)
    batches = ClientBatches(images, labels, half, half, batch, augmentation="crop flip")
    generator = torch.Generator().manual_seed(0)

    def run(steps: int) -> None:
        for _ in range(steps // epoch):
            train(
                network, FrozenModels(), Objective(), lambda: batches.epoch(generator), 0.01,
                LocalSettings(1, 0.9, 1e-5),
            )  # fmt: skip

    return run


def milliseconds(run: Callable[[int], None], steps: int) -> float:
    """Return the wall time of a step."""
    started = time.perf_counter()
    run(steps)
    return 1000 * (time.perf_counter() - started) / steps


def shares(run: Callable[[int], None], steps: int) -> Counter[str]:
    """Return the share of each kind of operator in the profiled time."""
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        run(steps)
    spent: Counter[str] = Counter()
    for row in profiled.key_averages():
        spent[kind_of(row.key)] += row.self_cpu_time_total
    total = spent.total()
    return Counter({kind: value / total for kind, value in spent.items()})


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--batch-size", type=int, default=10)
    parser.add_argument("--epoch", type=int, default=5, help="steps of a client")
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_memory()
    runs = {
        "bare": plain(options.model, options.batch_size, tuned=False),
        "tuned": plain(options.model, options.batch_size, tuned=True),
        "fedapp": ours(options.model, options.batch_size, options.epoch),
    }
    steps = max(options.steps // options.epoch, 1) * options.epoch
    for run in runs.values():
        run(10 * options.epoch)  # the first steps allocate memory and choose kernels
    turns = [{name: milliseconds(run, steps) for name, run in runs.items()} for _ in range(TURNS)]
    whole = {name: statistics.median(turn[name] for turn in turns) for name in runs}
    parts = {name: shares(run, 10 * options.epoch) for name, run in runs.items()}
    rows = [
        [kind, *(f"{parts[name][kind] * whole[name]:.2f}" for name in runs)]
        for kind in (*KINDS, "other")
    ]
    rows.append(["whole step", *(f"{value:.2f}" for value in whole.values())])
    print(markdown((f"{options.model}, batch {options.batch_size}, ms", *runs), rows))


if __name__ == "__main__":
    main()
