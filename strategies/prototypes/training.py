"""The modules that servers train (for prototypes, a header, a generator) and their losses.

The data are prototypes that clients uploaded, so a step takes milliseconds. All computation is
single-threaded with a given random generator, so that it does not depend on the server's machine.
Symbols: p prototypes [B, K] with labels y [B], a table of class prototypes [C, K].
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from strategies.threads import one_thread

_EXACT = "donot_use_mm_for_euclid_dist"  # distances as roots of sums of squares
_SMALLEST = 0.01  # singular value that a fit uses, as a share of the largest
MOST_EPOCHS, PATIENCE, TOLERANCE = 100, 5, 1e-3  # of training to a plateau


@dataclass(frozen=True)
class ServerTraining:
    """How a server trains in every round."""

    draw: Callable[[int], torch.Generator]  # round -> generator of its shuffles and noise
    lr: float
    batch_size: int


class PrototypeMaker(nn.Module):
    """One trainable vector per class and two layers that turn it into the class's prototype.

    G(E) with E [C, K] and G: Linear(K, K), ReLU, Linear(K, K). `start` selects the initial output:

    plain: that of PyTorch's initial values. With rows of length one the biases outweigh E, and all
        classes get nearly the same direction.
    fitted: E itself. The input E is scaled by sqrt(K), to the length of rows from N(0, 1). The last
        layer is the least-squares solution of least norm for the output E, without directions in
        which it would need large weights (C near K): these would throw the prototypes about in the
        first steps. It is exact for C well below K; else it gives about the nearest rows.
    residual: E itself, as E + G(E) with the last layer zero.

    Its layers draw from torch's generator, which the caller seeds.
    Source: FedTGP (Zhang et al., AAAI 2024), TGP; FedORGP, TP; FedDOR, E and G.
    """

    def __init__(self, embedding: Tensor, start: str) -> None:
        super().__init__()
        width = embedding.shape[1]
        self.embedding = nn.Parameter(embedding.clone())
        self.residual = start == "residual"
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        if self.residual:
            nn.init.zeros_(self.second.weight)
            nn.init.zeros_(self.second.bias)
        elif start == "fitted":
            self._fit(embedding)

    @torch.no_grad()
    def _fit(self, rows: Tensor) -> None:
        """Scale E and solve for the last layer of least norm with G(E) = rows [C, K]."""
        self.embedding.mul_(rows.shape[1] ** 0.5)
        with one_thread():
            hidden = F.relu(self.first(self.embedding)).double()
            inputs = torch.cat((hidden, hidden.new_ones(len(rows), 1)), 1)
            fitted = torch.linalg.lstsq(inputs, rows.double(), rcond=_SMALLEST, driver="gelsd")
            solved = fitted.solution
        self.second.weight.copy_(solved[:-1].T)
        self.second.bias.copy_(solved[-1])

    def forward(self) -> Tensor:
        """Return the prototypes of all classes [C, K]."""
        made: Tensor = self.second(F.relu(self.first(self.embedding)))
        return self.embedding + made if self.residual else made


def gaussian_embedding(num_classes: int, width: int, seed: int) -> Tensor:
    """Return E [C, K] from N(0, 1)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_classes, width, generator=generator)


def intra_inter(prototypes: Tensor, labels: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """Return L_intra = mean of 1 - cos(p, e^y) and L_inter = mean of |cos(p, e^c)| over c != y.

    Source: FedDOR, equations 3 and 4, on uploaded prototypes; FedORGP's server losses.
    """
    cosines = F.normalize(prototypes, dim=1, eps=1e-12) @ F.normalize(table, dim=1, eps=1e-12).T
    own = cosines.gather(1, labels[:, None])
    intra = (1 - own).mean()
    if len(table) == 1:
        return intra, torch.zeros_like(intra)
    others = cosines.abs().sum() - own.abs().sum()
    return intra, others / (len(labels) * (len(table) - 1))


def margin_cross_entropy(
    prototypes: Tensor, labels: Tensor, table: Tensor, margin: float
) -> Tensor:
    """Return CE of z_c = -(||p - t_c|| + margin [c = y]): the true class must be nearer.

    Source: FedTGP, adaptive-margin-enhanced contrastive loss.
    """
    distances = torch.cdist(prototypes, table, compute_mode=_EXACT)
    true = F.one_hot(labels, len(table)).to(distances.dtype)
    return F.cross_entropy(-(distances + margin * true), labels)


def adaptive_margin(centres: np.ndarray, limit: float, rule: str) -> float:
    """Return FedTGP's margin from the uploaded classes' centres [n, K], at most `limit`.

    "maxmin": the largest of the distances to the nearest other centre, as in the code; "max": the
    largest distance of all, as in the paper's text. `limit` with fewer than two centres.
    """
    if len(centres) < 2:
        return limit
    exact = torch.from_numpy(centres).double()
    with one_thread():
        distances = torch.cdist(exact, exact, compute_mode=_EXACT).numpy()
    if rule == "max":
        return min(float(distances.max()), limit)
    np.fill_diagonal(distances, np.inf)
    return min(float(distances.min(1).max()), limit)


def train_on_pairs(
    module: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    rows: np.ndarray,
    classes: np.ndarray,
    training: ServerTraining,
    server_round: int,
    epochs: int | str,
) -> int:
    """Train a module in place by plain SGD on (prototype, class) pairs; return the epochs it took.

    `loss` takes prototypes [B, K] and labels [B]. Pairs are shuffled every epoch, and the last
    incomplete batch is used. With `epochs` "auto" the loss of all pairs is computed after every
    epoch, and training ends at its `Plateau`, or after `MOST_EPOCHS`.
    """
    draw = training.draw(server_round)
    prototypes, labels = torch.from_numpy(rows), torch.from_numpy(classes)
    parameters = list(module.parameters())
    max_epochs = MOST_EPOCHS if epochs == "auto" else int(epochs)
    plateau = Plateau()
    with one_thread():
        for epoch in range(max_epochs):
            for chosen in torch.randperm(len(labels), generator=draw).split(training.batch_size):
                descend(parameters, loss(prototypes[chosen], labels[chosen]), training.lr)
            if epochs == "auto" and plateau.reached(float(loss(prototypes, labels).detach())):
                return epoch + 1
    return max_epochs


class Plateau:
    """Detects, epoch by epoch, that a loss >= 0 no longer falls.

    The first loss is the reference. A later loss below (1 - `TOLERANCE`) times the reference
    becomes the new reference. The plateau is reached after `PATIENCE` epochs in a row without a new
    reference. A loss that is NaN is never a reference.
    """

    def __init__(self) -> None:
        self.reference, self.waited = float("inf"), 0

    def reached(self, loss: float) -> bool:
        """Add the loss after the next epoch; return whether the plateau is reached."""
        if loss < (1 - TOLERANCE) * self.reference:
            self.reference, self.waited = loss, 0
        else:
            self.waited += 1
        return self.waited >= PATIENCE


def descend(parameters: Sequence[nn.Parameter], loss: Tensor, lr: float) -> None:
    """Take one step of plain SGD."""
    gradients = torch.autograd.grad(loss, list(parameters))
    with torch.no_grad():
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.sub_(lr * gradient)


class FeatureGenerator(nn.Module):
    """FedGen's generator: maps noise [B, n] and classes [B] to features [B, K].

    Its layers draw from torch's generator, which the caller seeds.
    Source: Zhu et al., ICML 2021, in the data-free variant for heterogeneous extractors.
    """

    def __init__(self, num_classes: int, width: int, noise: int, hidden: int) -> None:
        super().__init__()
        self.num_classes, self.noise = num_classes, noise
        self.first = nn.Linear(noise + num_classes, hidden)
        self.norm = nn.BatchNorm1d(hidden)
        self.second = nn.Linear(hidden, width)

    def forward(self, noise: Tensor, labels: Tensor) -> Tensor:
        """Map noise from U(0, 1) and labels [B] to features [B, K]."""
        inputs = torch.cat((noise, F.one_hot(labels, self.num_classes).to(noise.dtype)), 1)
        features: Tensor = self.second(F.relu(self.norm(self.first(inputs))))
        return features


def ensemble_loss(features: Tensor, labels: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return CE of the clients' weighted mean logits, for generated features [B, K] with labels.

    Heads are linear, so the weighted mean of their logits is the logit of the mean head
    (weight [C, K], bias [C]). Source: FedGen, equation 4, data-free.
    """
    return F.cross_entropy(F.linear(features, weight, bias), labels)


def diversity_loss(noise: Tensor, features: Tensor) -> Tensor:
    """Return exp(-mean over pairs i, j of d(noise_i, noise_j) |z_i - z_j|): small for diverse z.

    d is the mean squared difference of noise [B, n], |.| the mean absolute difference of generated
    features z [B, K]. The B pairs with i = j count as zero. Source: FedGen, the authors' code.
    """
    of_noise = (noise[:, None] - noise[None]).square().mean(2)
    of_features = (features[:, None] - features[None]).abs().mean(2)
    return torch.exp(-(of_noise * of_features).mean())
