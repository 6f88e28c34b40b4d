"""Every local loss as a pure function, so that each formula can be read, tested and reused alone.

Symbols: B batch size, C classes, d feature length, f features [B, d], z logits [B, C], y labels [B]
(int64), a superscript g for the received global model (a constant: run it under `no_grad`),
norm(f) = f / max(||f||, 1e-12) inside the graph, cos(a, b) = <norm(a), norm(b)>. Each function
returns a scalar averaged over the batch and never waits for the device. A wrong shape raises
PyTorch's own error.
"""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional as F


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return CE = mean of -log softmax(z)_y, for logits [B, C] and labels [B].

    Source: McMahan et al., AISTATS 2017 (FedAvg's local loss).
    """
    return F.cross_entropy(logits, labels)


def dot_regression(features: Tensor, labels: Tensor, classifier: Tensor) -> Tensor:
    """Return DR = mean of 1/2 (cos(f, v_y) - 1)^2, for features [B, d] and classifier rows [C, d].

    The gradient (cos - 1)/||f|| (v_y - cos f/||f||) is orthogonal to f.
    Source: Yang et al., NeurIPS 2022, equation 9; FedDr+ (Kim S. et al., TMLR 2025), section 2.2.
    """
    cosine = F.cosine_similarity(features, classifier[labels], dim=1, eps=1e-12)
    return 0.5 * (cosine - 1).square().mean()


def feature_distillation(features: Tensor, global_features: Tensor) -> Tensor:
    """Return FD = mean of (1/d) ||f - f^g||^2, for un-normalised features [B, d].

    Source: FedDr+ (Kim S. et al., TMLR 2025), L_FD in equation 1.
    """
    return F.mse_loss(features, global_features)


def divergence(teacher: Tensor, student: Tensor, per_element: bool = True) -> Tensor:
    """Return KL(softmax(teacher) || softmax(student)) of logits [B, C].

    `per_element` divides the sum by B C, as the public implementations do; otherwise by B.
    """
    log_teacher = teacher.log_softmax(1)
    total = (log_teacher.exp() * (log_teacher - student.log_softmax(1))).sum()
    return total / (teacher.numel() if per_element else len(teacher))


def knowledge_distillation(logits: Tensor, global_logits: Tensor, tau: float = 3.0) -> Tensor:
    """Return KD = tau^2 KL(softmax(z^g / tau) || softmax(z / tau)), for logits [B, C].

    The divergence is summed over classes and averaged over the batch.
    Source: Hinton et al., 2015, section 2; FedDr+ (Kim S. et al., TMLR 2025), regulariser KD.
    """
    return tau**2 * divergence(global_logits / tau, logits / tau, per_element=False)


def not_true_distillation(
    logits: Tensor,
    global_logits: Tensor,
    labels: Tensor,
    tau: float = 1.0,
    tau_squared: bool = True,
) -> Tensor:
    """Return NTD = tau^2 KL(q^g || q) over the C-1 not-true classes, for logits [B, C].

    q = softmax of z / tau without column y, so dNTD/dz_y is exactly 0. The paper's code has the
    factor tau^2, its equation has not: `tau_squared=False` follows the equation.
    Source: FedNTD (Lee G. et al., NeurIPS 2022), equations 10-11.
    """
    local, received = _not_true(logits, labels), _not_true(global_logits, labels)
    loss = divergence(received / tau, local / tau, per_element=False)
    return tau**2 * loss if tau_squared else loss


def not_true_mse(logits: Tensor, global_logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean of (z - z^g)^2 over the batch and the C-1 not-true logits of [B, C].

    Source: FedNTD (Lee G. et al., NeurIPS 2022), table 14, MSE variant of NTD.
    """
    return F.mse_loss(_not_true(logits, labels), _not_true(global_logits, labels))


def kd_to_ntd(
    logits: Tensor, global_logits: Tensor, labels: Tensor, tau: float = 1.0, share: float = 1.0
) -> Tensor:
    """Return (1 - lambda) KD + lambda NTD with lambda = `share`, for logits [B, C].

    Source: FedNTD (Lee G. et al., NeurIPS 2022), appendix H, equations 17-18.
    """
    whole = knowledge_distillation(logits, global_logits, tau)
    return (1 - share) * whole + share * not_true_distillation(logits, global_logits, labels, tau)


def logit_distillation(logits: Tensor, global_logits: Tensor) -> Tensor:
    """Return LD = mean of (1/C) ||z - z^g||^2, for raw logits [B, C].

    Source: Kim T. et al., IJCAI 2021, L_MSE; FedDr+ (Kim S. et al., TMLR 2025), regulariser LD.
    """
    return F.mse_loss(logits, global_logits)


def moon_contrastive(
    features: Tensor, global_features: Tensor, previous_features: Tensor, tau: float = 0.5
) -> Tensor:
    """Return the mean of -log(e^(a/tau) / (e^(a/tau) + e^(b/tau))), for features [B, d].

    a = cos(f, f^g) and b = cos(f, f^p), f^p from this client's model after its last participation.
    Source: MOON (Li Q. et al., CVPR 2021), l_con.
    """
    to_global = F.cosine_similarity(features, global_features, dim=1, eps=1e-12)
    to_previous = F.cosine_similarity(features, previous_features, dim=1, eps=1e-12)
    return -F.logsigmoid((to_global - to_previous) / tau).mean()


def proximal(parameters: Iterable[Tensor], global_parameters: Iterable[Tensor]) -> Tensor:
    """Return 1/2 sum of ||w - w^g||^2 over two lists of tensors in the same order.

    w^g gets no gradient. Source: FedProx (Li T. et al., MLSys 2020), eq. 2, without its factor mu.
    """
    # One flat vector costs a few kernels; a loop over tensors costs several for each of them.
    local = torch.cat([parameter.flatten() for parameter in parameters])
    received = torch.cat([parameter.flatten() for parameter in global_parameters])
    return 0.5 * (local - received.detach()).square().sum()


def cosine_mse(logits: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
    """Return the squared error of cosine logits [B, C] against one-hot labels.

    `reduction="mean"` averages over batch and classes; `"sum-classes"` sums over classes.
    Raises ValueError for another reduction.
    Source: SphereFed (Dong et al., ECCV 2022), the MSE loss on the hypersphere.
    """
    if reduction not in ("mean", "sum-classes"):
        raise ValueError(f"reduction is {reduction!r}; it must be 'mean' or 'sum-classes'")
    classes = torch.arange(logits.shape[1], device=logits.device)
    target = (labels[:, None] == classes).to(logits.dtype)  # F.one_hot may check labels on the host
    error = F.mse_loss(logits, target)
    return error if reduction == "mean" else logits.shape[1] * error


def balanced_cross_entropy(
    logits: Tensor,
    labels: Tensor,
    class_counts: Tensor,
    missing: str = "clamp",
) -> Tensor:
    """Return CE(z + log n), for logits [B, C] and this client's class counts n [C].

    Classes with n_c = 0: `missing="clamp"` counts them as 1 (official code), `"exclude"` removes
    them from the softmax (the formula; the loss of a label of such a class is infinite).
    Raises ValueError for another `missing`.
    Source: FedETF (Li Z. et al., ICCV 2023), balanced feature loss with gamma 1; with "exclude" the
    balanced softmax of FedRoD (Chen and Chao 2022, ICLR).
    """
    if missing not in ("clamp", "exclude"):
        raise ValueError(f"missing is {missing!r}; it must be 'clamp' or 'exclude'")
    # At least float32: the log of a count loses too much in half precision.
    counts = class_counts.to(torch.promote_types(logits.dtype, torch.float32))
    balanced = logits + counts.clamp_min(1).log()
    if missing == "exclude":
        balanced = balanced.masked_fill(counts == 0, float("-inf"))
    return F.cross_entropy(balanced, labels)


def calibrated_cross_entropy(
    logits: Tensor, labels: Tensor, class_counts: Tensor, tau: float = 1.0
) -> Tensor:
    """Return CE(z - tau n^(-1/4)), for logits [B, C] and this client's class counts n [C].

    Classes with n_c = 0 are left out of the softmax; the loss of a label of one is infinite. The
    printed sum runs over the other classes only; here, as in public code, it has the label's, too.
    Source: FedLC (Zhang J. et al., ICML 2022), the calibrated loss.
    """
    counts = class_counts.to(torch.promote_types(logits.dtype, torch.float32))
    margins = tau * counts.clamp_min(1).pow(-0.25)
    return F.cross_entropy((logits - margins).masked_fill(counts == 0, float("-inf")), labels)


def restricted_scale(class_counts: Tensor, alpha: float) -> Tensor:
    """Return 1 for the classes that a client has and alpha for the others, [C].

    Source: FedRS (Li X. and Zhan, KDD 2021), the restricted softmax.
    """
    return torch.where(class_counts > 0, 1.0, alpha)


def class_scale(class_counts: Tensor) -> Tensor:
    """Return Phi_c = C n_c / n of a client, [C], for its class counts n_c [C].

    Source: FedGELA (Fan et al., NeurIPS 2023), the scale of a client's logits.
    """
    return class_counts * (len(class_counts) / class_counts.sum())


def scaled_cross_entropy(
    logits: Tensor, labels: Tensor, class_scale: Tensor, temperature: float = 1.0
) -> Tensor:
    """Return CE(Phi * z / temperature), for logits [B, C] and this client's Phi [C].

    Every class stays in the softmax.
    Sources: FedGELA (Fan et al., NeurIPS 2023), local loss, with Phi of `class_scale` (the
    temperature is in its code); FedRS (KDD 2021) with that of `restricted_scale`.
    """
    return F.cross_entropy(logits * (class_scale / temperature), labels)


def feature_norm(features: Tensor) -> Tensor:
    """Return the mean of sqrt(sum f^2 + 1e-12), for features [B, d]: a norm, not its square.

    The constant keeps the gradient at f = 0 finite.
    Source: FedFN (Kim S. et al., 2023), appendix D.6, FedFR.
    """
    return (features.square().sum(dim=1) + 1e-12).sqrt().mean()


def feature_decorrelation(features: Tensor, authors: bool = True) -> Tensor:
    """Return the mean squared correlation of the features [B, d] over the batch.

    The paper has ||K||^2 / d^2, K the correlations [d, d]. Its code has (B - 1)^2 / B times the
    mean over the pairs of different features: `authors=True`, to which its weight 0.1 belongs.
    Source: FedDecorr (Shi et al., ICLR 2023), L_FedDecorr.
    """
    batch, width = features.shape
    centred = features - features.mean(dim=0)
    variances = 1e-8 * max(batch - 1, 1) + centred.square().sum(dim=0)
    columns = centred / variances.sqrt()  # of length 1, so that K = columns^T columns
    with torch.autocast(features.device.type, enabled=False):  # a difference of sums follows
        squares = (columns @ columns.T).square().sum()  # = ||K||^2, in B x B products, not d x d
    if not authors:
        return squares / width**2
    squares = squares - columns.square().sum(dim=0).square().sum()
    return (batch - 1) ** 2 / batch * squares / max(width * (width - 1), 1)


def _not_true(logits: Tensor, labels: Tensor) -> Tensor:
    """Return logits [B, C] without each row's true class, in the same order: [B, C-1]."""
    columns = torch.arange(logits.shape[1] - 1, device=logits.device)
    return logits.gather(1, columns + (columns >= labels[:, None]))
