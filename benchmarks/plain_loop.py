"""Images per second of plain centralised PyTorch training: the ceiling for a federated round.

The loop has the model, batch size, optimiser and precision of a federated run, its data as tensors
in memory, and nothing else: no augmentation, no messages, no clients. Run it in the same hour as
the run it is compared with:

    python benchmarks/plain_loop.py --model cnn --batch-size 50
"""

import argparse
import json
import subprocess
import sys
import time

import torch
from torch import nn

from fedapp.models import build_model
from fedapp.models.backbones import BACKBONES


def measure(model_name: str, batch_size: int, threads: int, seconds: float) -> float:
    """Train on random 32x32 colour images for about `seconds`; returns images per second."""
    torch.set_num_threads(threads)
    model = build_model(model_name, "linear", 3, 32, 10, seed=0)
    images, labels = torch.randn(2000, 3, 32, 32), torch.randint(0, 10, (2000,))
    images = images.contiguous(memory_format=torch.channels_last)
    optimiser = torch.optim.SGD(model.parameters(), 0.01, 0.9, weight_decay=1e-5, fused=True)
    seen, start = 0, 0.0
    for step in range(10**6):
        if step == 5:  # the first steps allocate memory and choose kernels
            seen, start = 0, time.perf_counter()
        chosen = torch.randint(0, len(labels), (batch_size,))
        _, logits = model(images[chosen])
        loss = nn.functional.cross_entropy(logits, labels[chosen])
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        seen += batch_size
        if step > 5 and time.perf_counter() - start > seconds:
            break
    return seen / (time.perf_counter() - start)


def measure_together(arguments: argparse.Namespace, processes: int) -> float:
    """Return the summed images per second of several single-threaded processes at the same time."""
    command = [sys.executable, __file__, "--worker", "--model", arguments.model]
    command += ["--batch-size", str(arguments.batch_size), "--seconds", str(arguments.seconds)]
    workers = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(processes)
    ]
    return sum(float(worker.communicate()[0]) for worker in workers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="cnn", choices=sorted(BACKBONES))
    parser.add_argument("--batch-size", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        print(measure(arguments.model, arguments.batch_size, 1, arguments.seconds))
        return
    figures = {
        "1 process x 1 thread": measure(
            arguments.model, arguments.batch_size, 1, arguments.seconds
        ),
        f"1 process x {arguments.cores} threads": measure(
            arguments.model, arguments.batch_size, arguments.cores, arguments.seconds
        ),
        f"{arguments.cores} processes x 1 thread": measure_together(arguments, arguments.cores),
    }
    print(json.dumps({"model": arguments.model, "images_per_second": figures}, indent=2))


if __name__ == "__main__":
    main()
