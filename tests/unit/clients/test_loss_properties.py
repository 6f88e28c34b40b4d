"""The losses against autograd, against plain re-statements, and by the properties methods rely on.

Every loss is in one table as a function of the local model's output, so that what holds for all of
them (exact gradients, batch means, no waiting for the device) is said once.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from clients import losses
from fedapp.models.heads import Head, simplex_etf


@dataclass
class Batch:
    """Random inputs of every loss, float64 and on one device."""

    features: Tensor
    global_features: Tensor
    previous_features: Tensor
    logits: Tensor
    global_logits: Tensor
    labels: Tensor
    classifier: Tensor
    counts: Tensor

    def on(self, device: str) -> "Batch":
        return Batch(*(getattr(self, field.name).to(device) for field in fields(self)))

    def rows(self, index: Tensor) -> "Batch":
        shared = {"classifier", "counts"}
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return Batch(**{k: v if k in shared else v[index] for k, v in values.items()})


def draw(seed: int, size: int = 5, classes: int = 4, width: int = 6) -> Batch:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    labels = torch.randint(classes, (size,), generator=generator)
    counts = torch.bincount(labels, minlength=classes)
    fs, zs = (normal(size, width) for _ in range(3)), (normal(size, classes) for _ in range(2))
    return Batch(*fs, *zs, labels, normal(classes, width), counts)


# Loss of the local features or logits `t`, all else taken from a batch `x`.
OF_FEATURES: dict[str, Callable[[Batch, Tensor], Tensor]] = {
    "dot_regression": lambda x, t: losses.dot_regression(t, x.labels, x.classifier),
    "feature_distillation": lambda x, t: losses.feature_distillation(t, x.global_features),
    "moon_contrastive": lambda x, t: losses.moon_contrastive(
        t, x.global_features, x.previous_features
    ),
    "feature_norm": lambda x, t: losses.feature_norm(t),
}
OF_LOGITS: dict[str, Callable[[Batch, Tensor], Tensor]] = {
    "cross_entropy": lambda x, t: losses.cross_entropy(t, x.labels),
    "knowledge_distillation": lambda x, t: losses.knowledge_distillation(t, x.global_logits),
    "not_true_distillation": lambda x, t: losses.not_true_distillation(
        t, x.global_logits, x.labels, tau=3.0
    ),
    "not_true_mse": lambda x, t: losses.not_true_mse(t, x.global_logits, x.labels),
    "logit_distillation": lambda x, t: losses.logit_distillation(t, x.global_logits),
    "cosine_mse": lambda x, t: losses.cosine_mse(t, x.labels),
    "cosine_mse, sum": lambda x, t: losses.cosine_mse(t, x.labels, "sum-classes"),
    "balanced_cross_entropy": lambda x, t: losses.balanced_cross_entropy(t, x.labels, x.counts),
    "balanced_cross_entropy, exclude": lambda x, t: losses.balanced_cross_entropy(
        t, x.labels, x.counts, missing="exclude"
    ),
    "scaled_cross_entropy": lambda x, t: losses.scaled_cross_entropy(t, x.labels, x.counts / 2),
}
EVERY_LOSS = OF_FEATURES | OF_LOGITS


def loss_of(name: str, batch: Batch) -> Tensor:
    return EVERY_LOSS[name](batch, local(name, batch))


def local(name: str, batch: Batch) -> Tensor:
    return batch.features if name in OF_FEATURES else batch.logits


def gradient_of(function: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    variable = at.clone().requires_grad_()
    return torch.autograd.grad(function(variable), variable)[0]


@pytest.mark.parametrize("name", EVERY_LOSS)
@pytest.mark.parametrize("seed", [0, 1])
def test_gradient_is_right(name: str, seed: int) -> None:
    batch = draw(seed)
    variable = local(name, batch).requires_grad_()
    assert torch.autograd.gradcheck(lambda t: EVERY_LOSS[name](batch, t), (variable,))


@pytest.mark.parametrize("name", EVERY_LOSS)
def test_loss_is_a_batch_mean(name: str) -> None:
    batch = draw(2)
    parts = [loss_of(name, batch.rows(torch.tensor([index]))) for index in range(5)]
    torch.testing.assert_close(loss_of(name, batch), torch.stack(parts).mean())


@pytest.mark.parametrize("name", EVERY_LOSS)
def test_loss_never_reads_a_value_on_the_host(name: str) -> None:
    # The meta device has no values, so whatever waits for one raises.
    assert loss_of(name, draw(0).on("meta")).shape == ()


@pytest.mark.parametrize("name", EVERY_LOSS)
def test_half_precision_inputs_give_a_finite_loss_near_the_exact_one(name: str) -> None:
    batch = draw(3)
    rounded = Batch(*(v.bfloat16() if v.is_floating_point() else v for v in vars(batch).values()))
    exact, value = loss_of(name, batch), loss_of(name, rounded)
    torch.testing.assert_close(value.double(), exact, rtol=0.05, atol=0.02)


@given(seed=st.integers(0, 10_000), classes=st.integers(2, 12), size=st.integers(1, 8))
@settings(max_examples=40, deadline=None)
def test_not_true_losses_equal_deleting_the_column(seed: int, classes: int, size: int) -> None:
    batch = draw(seed, size, classes)
    divergences, errors = [], []
    for z, z_global, label in zip(batch.logits, batch.global_logits, batch.labels, strict=True):
        keep = [c for c in range(classes) if c != label]
        p, q = (v[keep].div(2.0).softmax(0) for v in (z_global, z))
        divergences.append(4.0 * (p * (p / q).log()).sum())
        errors.append((z[keep] - z_global[keep]).square().mean())
    arguments = batch.logits, batch.global_logits, batch.labels
    torch.testing.assert_close(
        losses.not_true_distillation(*arguments, tau=2.0), torch.stack(divergences).mean()
    )
    torch.testing.assert_close(losses.not_true_mse(*arguments), torch.stack(errors).mean())


@given(
    seed=st.integers(0, 10_000),
    classes=st.integers(2, 12),
    magnitude=st.sampled_from([1e-6, 1.0, 1e4]),
)
@settings(max_examples=40, deadline=None)
def test_not_true_losses_do_not_move_the_true_logit(
    seed: int, classes: int, magnitude: float
) -> None:
    batch = draw(seed, classes=classes)
    for name in ("not_true_distillation", "not_true_mse"):
        gradient = gradient_of(
            lambda t, name=name: EVERY_LOSS[name](batch, t), batch.logits * magnitude
        )
        assert torch.isfinite(gradient).all()
        assert (gradient.gather(1, batch.labels[:, None]) == 0).all()


@pytest.mark.parametrize(
    "name",
    [
        "knowledge_distillation",
        "not_true_distillation",
        "not_true_mse",
        "logit_distillation",
        "feature_distillation",
    ],
)
def test_distillation_from_itself_is_zero(name: str) -> None:
    batch = draw(4)
    teacher = batch.global_features if name in OF_FEATURES else batch.global_logits
    assert EVERY_LOSS[name](batch, teacher.clone()).item() == 0
    assert EVERY_LOSS[name](batch, local(name, batch)).item() > 0
    assert not gradient_of(lambda t: EVERY_LOSS[name](batch, t), teacher).abs().gt(1e-15).any()


def test_not_true_distillation_of_two_classes_is_zero() -> None:
    assert loss_of("not_true_distillation", draw(5, classes=2)).item() == 0


def fedetf(x: Batch, f: Tensor) -> Tensor:
    logits = Head(x.classifier, normalise=True, scale=2.0)(f)
    return losses.balanced_cross_entropy(logits, x.labels, x.counts)


def spherefed(x: Batch, f: Tensor) -> Tensor:
    return losses.cosine_mse(Head(x.classifier, normalise=True)(f), x.labels)


def fedfn(x: Batch, f: Tensor) -> Tensor:
    return losses.cross_entropy(Head(x.classifier, x.counts.double(), normalise=True)(f), x.labels)


@pytest.mark.parametrize(
    "loss",
    [OF_FEATURES["dot_regression"], OF_FEATURES["moon_contrastive"], spherefed, fedetf, fedfn],
    ids=["dot-regression", "moon", "spherefed", "fedetf", "fedfn"],
)
@given(seed=st.integers(0, 10_000), factor=st.floats(1e-3, 1e3))
@settings(max_examples=25, deadline=None)
def test_losses_on_normalised_features_ignore_their_length(
    loss: Callable[[Batch, Tensor], Tensor], seed: int, factor: float
) -> None:
    batch = draw(seed)
    gradient = gradient_of(lambda f: loss(batch, f), batch.features)
    assert gradient.norm() > 1e-6
    along = (gradient * batch.features).sum(dim=1)
    torch.testing.assert_close(along, torch.zeros_like(along), rtol=0, atol=1e-13)
    torch.testing.assert_close(loss(batch, factor * batch.features), loss(batch, batch.features))


@given(seed=st.integers(0, 10_000), count=st.integers(1, 1000))
@settings(max_examples=25, deadline=None)
def test_balanced_clients_train_with_plain_cross_entropy(seed: int, count: int) -> None:
    x = draw(seed)
    plain = losses.cross_entropy(x.logits, x.labels)
    counts = torch.full((4,), count)
    balanced = losses.balanced_cross_entropy(x.logits, x.labels, counts)
    torch.testing.assert_close(balanced, plain)
    phi = torch.ones(4, dtype=torch.float64)
    assert torch.equal(losses.scaled_cross_entropy(x.logits, x.labels, phi), plain)


def test_excluded_class_leaves_the_softmax_and_its_gradient_is_zero() -> None:
    labels, counts = torch.tensor([0, 2, 3]), torch.tensor([5, 0, 20, 15])
    logits = draw(7, size=3).logits

    def loss(z: Tensor) -> Tensor:
        return losses.balanced_cross_entropy(z, labels, counts, "exclude")

    gradient = gradient_of(loss, logits)
    assert torch.isfinite(gradient).all()
    assert (gradient[:, 1] == 0).all()
    present = [0, 2, 3]
    shifted = logits[:, present] + counts[present].double().log()
    expected = losses.cross_entropy(shifted, torch.tensor([0, 1, 2]))
    torch.testing.assert_close(loss(logits), expected)


def test_class_a_client_lacks_keeps_its_place_in_the_scaled_softmax() -> None:
    labels, phi = torch.tensor([1, 3, 0]), torch.tensor([0.5, 2.0, 0.0, 1.5])
    raw = draw(8, size=3).logits
    logits = raw * phi
    expected = (logits.exp().sum(1).log() - logits.gather(1, labels[:, None])[:, 0]).mean()
    torch.testing.assert_close(losses.scaled_cross_entropy(raw, labels, phi), expected)
    gradient = gradient_of(lambda z: losses.scaled_cross_entropy(z, labels, phi), raw)
    assert (gradient[:, 2] == 0).all()


def test_contrast_between_equal_models_is_log_two_and_falls_towards_the_global_one() -> None:
    x = draw(6)
    equal = losses.moon_contrastive(x.features, x.global_features, x.global_features)
    assert equal.item() == pytest.approx(math.log(2), rel=1e-12)
    towards = losses.moon_contrastive(x.global_features, x.global_features, x.previous_features)
    away = losses.moon_contrastive(x.previous_features, x.global_features, x.previous_features)
    assert towards < math.log(2) < away


def test_dot_regression_is_zero_on_the_class_vector_and_two_opposite_to_it() -> None:
    frame, labels = simplex_etf(4, 6, seed=0), torch.tensor([1, 3, 0])
    aligned = 3.0 * frame[labels]
    assert losses.dot_regression(aligned, labels, frame).item() == pytest.approx(0, abs=1e-12)
    assert losses.dot_regression(-aligned, labels, frame).item() == pytest.approx(2, rel=1e-6)


def test_proximal_gradient_is_the_distance_from_the_received_model() -> None:
    received = [torch.zeros(2, 3), torch.tensor([1.0, -1.0])]
    weights = [torch.arange(1.0, 7.0).view(2, 3), torch.tensor([0.5, 0.5])]
    weights = [weight.requires_grad_() for weight in weights]
    received = [anchor.requires_grad_() for anchor in received]  # pFedMe's anchor is trained, too
    penalty = losses.proximal(iter(weights), iter(received))
    assert penalty.item() == pytest.approx(0.5 * (91 + 0.25 + 2.25))
    gradients = torch.autograd.grad(penalty, weights, retain_graph=True)
    for gradient, weight, anchor in zip(gradients, weights, received, strict=True):
        assert torch.equal(gradient, weight - anchor)
    assert torch.autograd.grad(penalty, received, allow_unused=True) == (None, None)


def test_zero_features_have_a_finite_norm_gradient() -> None:
    gradient = gradient_of(losses.feature_norm, torch.zeros(2, 3, dtype=torch.float64))
    assert (gradient == 0).all()


def test_unknown_options_are_refused() -> None:
    x = draw(0)
    with pytest.raises(ValueError, match="'mean' or 'sum-classes'"):
        losses.cosine_mse(x.logits, x.labels, "sum")
    with pytest.raises(ValueError, match="'clamp' or 'exclude'"):
        losses.balanced_cross_entropy(x.logits, x.labels, x.counts, missing="drop")
