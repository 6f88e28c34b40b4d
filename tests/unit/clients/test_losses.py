"""The losses against the numbers of the specification.

The vectors are float64 evaluations of the formulas made apart from this code, so agreement to nine
digits is agreement of formulas, not of implementations.
"""

import math
from collections.abc import Callable

import pytest
import torch
from reference import VECTORS, tensor
from torch import Tensor

from clients import losses
from fedapp.models.heads import Head

PUBLISHED = VECTORS["losses"]


F_LOCAL, F_GLOBAL, F_PREVIOUS, W, BIAS, U = (
    tensor(VECTORS["inputs"][name])
    for name in ("f_local", "f_global", "f_prev_local", "W", "b", "U")
)
LABELS = torch.tensor(VECTORS["inputs"]["y"])
COUNTS, COUNTS_NO_ZERO = (
    tensor(VECTORS["inputs"][name]) for name in ("class_counts", "class_counts_nozero")
)
ETF = tensor(VECTORS["etf"]["V_rows_are_classes"])
Z, Z_GLOBAL = (tensor(VECTORS["logits"][name]) for name in ("linear_local", "linear_global"))
PHI = losses.class_scale(COUNTS)

CE = losses.cross_entropy(Z, LABELS)
DR = losses.dot_regression(F_LOCAL, LABELS, ETF)
FD = losses.feature_distillation(F_LOCAL, F_GLOBAL)
SPHERE = Head(U.T, normalise=True)(F_LOCAL)
ETF_COSINE = Head(ETF, normalise=True)(F_LOCAL)
KD = {tau: losses.knowledge_distillation(Z, Z_GLOBAL, tau) for tau in (1, 3)}
NTD = {tau: losses.not_true_distillation(Z, Z_GLOBAL, LABELS, tau) for tau in (1, 3)}
NTD_RAW = {
    tau: losses.not_true_distillation(Z, Z_GLOBAL, LABELS, tau, tau_squared=False) for tau in (1, 3)
}

COMPUTED = {
    "CE_linear": CE,
    "DR": DR,
    "FD": FD,
    "DrPlus_beta0.9": 0.9 * DR + 0.1 * FD,
    "NTD_MSE_mean_over_B_and_Cminus1": losses.not_true_mse(Z, Z_GLOBAL, LABELS),
    "LD_mean_over_B_and_C": losses.logit_distillation(Z, Z_GLOBAL),
    "MOON_con_tau0.5": losses.moon_contrastive(F_LOCAL, F_GLOBAL, F_PREVIOUS),
    "Prox_half_sq_norm_W_b_vs_0.9x": losses.proximal([W, BIAS], [0.9 * W, 0.9 * BIAS]),
    "FedFN_CE_nobias": losses.cross_entropy(Head(W, normalise=True)(F_LOCAL), LABELS),
    "FedFN_CE_withbias": losses.cross_entropy(Head(W, BIAS, normalise=True)(F_LOCAL), LABELS),
    "SphereFed_logits_orthonormal_U": SPHERE,
    "SphereFed_MSE_sumC": losses.cosine_mse(SPHERE, LABELS, "sum-classes"),
    "SphereFed_MSE_meanBC": losses.cosine_mse(SPHERE, LABELS),
    "SphereFed_CE_tau1": losses.cross_entropy(SPHERE, LABELS),
    "SphereFed_CE_tau15": losses.cross_entropy(
        Head(U.T, normalise=True, scale=15.0)(F_LOCAL), LABELS
    ),
    "FedETF_balanced_beta1_gamma1_counts_with_zero_neginf": losses.balanced_cross_entropy(
        ETF_COSINE, LABELS, COUNTS, missing="exclude"
    ),
    "FedETF_balanced_beta1_gamma1_counts_clamped_1": losses.balanced_cross_entropy(
        ETF_COSINE, LABELS, COUNTS
    ),
    "FedETF_balanced_beta1_gamma1_counts_nozero": losses.balanced_cross_entropy(
        ETF_COSINE, LABELS, COUNTS_NO_ZERO
    ),
    "FedGELA_Phi_C_times_p": PHI,
    "FedGELA_CE_temp1": losses.scaled_cross_entropy(ETF_COSINE, LABELS, PHI),
    "FedGELA_CE_unnormalised_f": losses.scaled_cross_entropy(Head(ETF)(F_LOCAL), LABELS, PHI),
    "FedFR_mu0.005": CE + 0.005 * losses.feature_norm(F_LOCAL),
    **{f"KD_raw_tau{tau}": KD[tau] / tau**2 for tau in KD},
    **{f"KD_times_tau2_tau{tau}": KD[tau] for tau in KD},
    **{f"NTD_raw_tau{tau}": NTD_RAW[tau] for tau in NTD},
    **{f"NTD_times_tau2_tau{tau}": NTD[tau] for tau in NTD},
    **{f"FedNTD_total_beta1_tau{tau}": CE + NTD[tau] for tau in NTD},
    **{
        f"KD2NTD_tau1_lambda{w}": CE + losses.kd_to_ntd(Z, Z_GLOBAL, LABELS, 1.0, w)
        for w in (0.0, 0.3, 1.0)
    },
}
GRADIENTS: dict[str, Callable[[Tensor], Tensor]] = {
    "DR_grad_f": lambda f: losses.dot_regression(f, LABELS, ETF),
    "FD_grad_f": lambda f: losses.feature_distillation(f, F_GLOBAL),
    "DrPlus_beta0.9_grad_f": lambda f: (
        0.9 * losses.dot_regression(f, LABELS, ETF) + 0.1 * losses.feature_distillation(f, F_GLOBAL)
    ),
}
# Per-sample parts of a loss, checked through the loss of one sample.
PARTS = ["DR_cosines", "MOON_sims_global", "MOON_sims_prev"]


def test_every_published_loss_is_compared() -> None:
    assert {*COMPUTED, *GRADIENTS, *PARTS} == set(PUBLISHED)


@pytest.mark.parametrize("name", COMPUTED)
def test_value_matches_vector(name: str) -> None:
    torch.testing.assert_close(COMPUTED[name], tensor(PUBLISHED[name]), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradient_matches_vector(name: str) -> None:
    features = F_LOCAL.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(GRADIENTS[name](features), features)
    torch.testing.assert_close(gradient, tensor(PUBLISHED[name]), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("sample", range(3))
def test_loss_of_one_sample_follows_its_published_cosines(sample: int) -> None:
    row = slice(sample, sample + 1)
    dot = losses.dot_regression(F_LOCAL[row], LABELS[row], ETF)
    moon = losses.moon_contrastive(F_LOCAL[row], F_GLOBAL[row], F_PREVIOUS[row], tau=0.1)
    cosine, near, far = (PUBLISHED[name][sample] for name in PARTS)
    assert dot.item() == pytest.approx(0.5 * (cosine - 1) ** 2, rel=1e-9)
    assert moon.item() == pytest.approx(math.log1p(math.exp((far - near) / 0.1)), rel=1e-8)
