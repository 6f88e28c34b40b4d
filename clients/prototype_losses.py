"""Losses of clients that learn from prototypes or from a second model, as pure functions.

Symbols as in `losses`: B batch size, C classes, K feature length, f features [B, K], z logits
[B, C], y labels [B], P global prototypes [C, K]; `known` [C] marks the classes that have one.
Received prototypes are constants; features and both models of a pair are not detached. A class
without a prototype adds nothing to a sum but stays in its denominator.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from clients.losses import divergence


def cosine_alignment(features: Tensor, labels: Tensor, prototypes: Tensor, known: Tensor) -> Tensor:
    """Return (1/B) sum of 1 - cos(f_i, P^{y_i}), for features [B, K].

    The same as (1/2B) sum of ||norm(f_i) - norm(P^{y_i})||^2.
    Source: FedDOR, L_align; FedORGP (Guo et al., arXiv 2502.16119), the client's term.
    """
    cosine = F.cosine_similarity(features, prototypes[labels], dim=1, eps=1e-12)
    return ((1 - cosine) * known[labels]).mean()


def prototype_mse(features: Tensor, labels: Tensor, prototypes: Tensor, known: Tensor) -> Tensor:
    """Return (1/BK) sum of ||f_i - P^{y_i}||^2, for features [B, K].

    Source: FedProto (Tan et al., AAAI 2022), the regulariser; FedTGP (Zhang et al., AAAI 2024).
    """
    squares = (features - prototypes[labels]).square().mean(1)
    return (squares * known[labels]).mean()


def soft_cross_entropy(
    logits: Tensor, labels: Tensor, class_logits: Tensor, known: Tensor
) -> Tensor:
    """Return (1/B) sum of -sum_c softmax(g^{y_i})_c log softmax(z_i)_c, for logits [B, C].

    Row c of `class_logits` [C, C] is g^c, the mean logits of class c.
    Source: FD (Jeong et al., 2018, arXiv 1811.11479), the distillation term.
    """
    targets = class_logits[labels].softmax(1)
    return (-(targets * logits.log_softmax(1)).sum(1) * known[labels]).mean()


def adaptive_mutual(
    pair: tuple[Tensor, Tensor],
    features: tuple[Tensor, Tensor],
    labels: Tensor,
    per_element: bool = True,
    detach: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the losses of a personal model and its mentee, for one backward pass of their sum.

    The personal model's loss is CE + (KL(mentee || personal) + MSE) / S, where S is the sum of both
    cross-entropies. The mentee's loss is the same with exchanged roles.

    Args:
        pair: logits [B, C] of the personal model and of the mentee.
        features: [B, K] of the personal model, and of the mentee behind its linear map W_h.
        labels: [B].
        per_element: as in `divergence`.
        detach: treat the other model's outputs and S as constants.

    Source: FedKD (Wu et al., Nature Communications 2022), adaptive mutual distillation.
    """
    own, other = (F.cross_entropy(logits, labels) for logits in pair)
    total, fixed = own + other, features
    if detach:
        total, fixed = total.detach(), (features[0].detach(), features[1].detach())
    near = F.mse_loss(features[0], fixed[1])
    near_mentee = F.mse_loss(fixed[0], features[1]) if detach else near
    to_personal, to_mentee = _divergences(pair, per_element, detach)
    return own + (to_personal + near) / total, other + (to_mentee + near_mentee) / total


def mutual(
    personal: Tensor,
    meme: Tensor,
    labels: Tensor,
    alpha: float = 0.5,
    beta: float = 0.5,
    per_element: bool = True,
    detach: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return α CE + (1-α) KL(meme || personal), and β CE + (1-β) KL(personal || meme).

    Both for logits [B, C]. `per_element` as in `divergence`; `detach` treats the other model's
    logits as constants. Source: FML (Shen et al., 2020, arXiv 2006.16765).
    """
    to_personal, to_meme = _divergences((personal, meme), per_element, detach)
    own = alpha * F.cross_entropy(personal, labels) + (1 - alpha) * to_personal
    return own, beta * F.cross_entropy(meme, labels) + (1 - beta) * to_meme


def _divergences(
    pair: tuple[Tensor, Tensor], per_element: bool, detach: bool
) -> tuple[Tensor, Tensor]:
    """Return KL(second || first) and KL(first || second) of a pair of logits [B, C].

    `per_element` as in `divergence`; `detach` treats the logits in the first places as constants.
    """
    first, second = pair
    teachers = (first.detach(), second.detach()) if detach else pair
    return divergence(teachers[1], first, per_element), divergence(teachers[0], second, per_element)


def class_means(
    features: Tensor, labels: Tensor, num_classes: int, kind: str = "raw-mean"
) -> tuple[Tensor, Tensor]:
    """Return the mean feature of every class [C, K] in float64, and the counts [C].

    `kind`: "raw-mean"; "mean-of-normalised" of norm(f); "normalised-mean" is norm of the raw mean.
    Rows of absent classes are zero; they are never sent.
    Source: FedProto, equation 3; FedDOR, equations 5 and 6.
    """
    values = features.double()
    if kind == "mean-of-normalised":
        values = F.normalize(values, dim=1, eps=1e-12)
    counts = torch.bincount(labels, minlength=num_classes)
    members = F.one_hot(labels, num_classes).double()
    means = members.T @ values / counts.clamp(min=1)[:, None]
    return (F.normalize(means, dim=1, eps=1e-12) if kind == "normalised-mean" else means), counts


def nearest_prototype(
    features: Tensor, prototypes: Tensor, known: Tensor, cosine: bool = False
) -> Tensor:
    """Return the class [B] of the nearest known prototype, the lowest class in a tie.

    Squared Euclidean distance (FedProto, FedTGP) or cosine similarity (FedDOR, FedORGP).
    """
    if cosine:
        directions = F.normalize(prototypes, dim=1, eps=1e-12)
        nearness = F.normalize(features, dim=1, eps=1e-12) @ directions.T
    else:
        exact = "donot_use_mm_for_euclid_dist"
        nearness = -torch.cdist(features, prototypes, compute_mode=exact)
    return nearness.masked_fill(~known, -torch.inf).argmax(1)  # argmax: first of equals
