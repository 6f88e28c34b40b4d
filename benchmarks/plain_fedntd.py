"""FedAvg or FedNTD at FedNTD's CIFAR-10 setting as a plain loop, to check fedapp's accuracies.

It shares no code with fedapp: torchvision's transforms, torch.optim.SGD and a mean in float32.

    python benchmarks/plain_fedntd.py fedavg FOLDER --epochs 1 --rounds 200

FOLDER holds {train,test}/CLASS/*.png or .jpg. One line of JSON per round goes to stdout.
"""

import argparse
import json
import random
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from torchvision import transforms as T

CLIENTS, COHORT, SHARDS, BATCH = 100, 10, 2, 50
LR, DECAY, MOMENTUM, WEIGHT_DECAY = 0.01, 0.99, 0.9, 1e-5
NORMALISE = T.Compose(
    [T.ToTensor(), T.Normalize((0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616))]
)
AUGMENT = T.Compose(
    [T.ToPILImage(), T.RandomCrop(32, padding=4), T.RandomHorizontalFlip(), NORMALISE]
)


def main() -> None:
    """Train and print the test accuracy after each round."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("method", choices=["fedavg", "fedntd"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    images, labels = read(options.folder / "train")
    test_images, test_labels = read(options.folder / "test")
    test = torch.stack([NORMALISE(image) for image in test_images]).split(500)
    goals = torch.tensor(test_labels).split(500)
    clients, server, lr = shards(labels), network(), LR
    for number in range(1, options.rounds + 1):
        models = []
        for client in np.random.choice(CLIENTS, COHORT, replace=False):
            mine = clients[client]
            models.append(local(options, server, images[mine], labels[mine], lr))
        mean = {k: torch.stack([m[k] for m in models]).mean(0) for k in models[0]}
        server.load_state_dict(mean)
        lr *= DECAY
        with torch.no_grad():
            hits = [server(x).argmax(1).eq(y) for x, y in zip(test, goals, strict=True)]
        accuracy = torch.cat(hits).double().mean().item()
        print(json.dumps({"round": number, "accuracy": accuracy}), flush=True)


def read(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the images uint8 [n, 32, 32, 3] and labels [n] of one folder per class."""
    classes = sorted(path for path in folder.iterdir() if path.is_dir())
    files = [(file, label) for label, path in enumerate(classes) for file in sorted(path.iterdir())]
    images = [np.asarray(Image.open(file).convert("RGB")) for file, _ in files]
    return np.stack(images), np.array([label for _, label in files])


def shards(labels: np.ndarray) -> list[np.ndarray]:
    """Give each client two shards of one class each."""
    per_class = CLIENTS * SHARDS // 10
    parts = [
        part
        for label in range(10)
        for part in np.array_split(
            np.random.permutation(np.flatnonzero(labels == label)), per_class
        )
    ]
    random.shuffle(parts)
    return [np.concatenate(parts[SHARDS * i : SHARDS * (i + 1)]) for i in range(CLIENTS)]


def network() -> nn.Module:
    """Return the small CNN of two convolutions and two dense layers."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(4096, 512), nn.ReLU(), nn.Linear(512, 10),
    )  # fmt: skip


def local(
    options: argparse.Namespace, server: nn.Module, x: np.ndarray, y: np.ndarray, lr: float
) -> dict[str, Tensor]:
    """Train a copy of the server's model on one client; return its weights."""
    model = network()
    model.load_state_dict(server.state_dict())
    optimiser = torch.optim.SGD(model.parameters(), lr, MOMENTUM, weight_decay=WEIGHT_DECAY)
    for _ in range(options.epochs):
        order = np.random.permutation(len(x))
        for batch in np.array_split(order, range(BATCH, len(order), BATCH)):
            inputs = torch.stack([cutout(AUGMENT(x[i])) for i in batch])
            labels = torch.tensor(y[batch])
            logits = model(inputs)
            loss = F.cross_entropy(logits, labels)
            if options.method == "fedntd":
                with torch.no_grad():
                    teacher = server(inputs)
                loss = loss + not_true(logits, teacher, labels)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return model.state_dict()


def cutout(image: Tensor, half: int = 8) -> Tensor:
    """Set a square of 16 pixels around a random centre to 0."""
    row, column = np.random.randint(32), np.random.randint(32)
    image[:, max(row - half, 0) : row + half, max(column - half, 0) : column + half] = 0
    return image


def not_true(logits: Tensor, teacher: Tensor, labels: Tensor) -> Tensor:
    """Return the KL divergence between the softmaxes over the classes that are not true."""
    others = torch.ones_like(logits).scatter_(1, labels[:, None], 0).bool()
    ours, theirs = (z[others].view(len(z), -1) for z in (logits, teacher))
    return F.kl_div(F.log_softmax(ours, 1), F.softmax(theirs, 1), reduction="batchmean")


if __name__ == "__main__":
    main()
