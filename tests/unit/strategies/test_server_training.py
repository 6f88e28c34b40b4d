"""What servers train, against the specification's numbers: one exact step of each module."""

import numpy as np
import pytest
import torch
from reference import HETEROGENEOUS, tensor
from torch import nn
from torch.nn import functional as F

from fedapp.core.rng import seeded
from strategies.prototypes.training import (
    MOST_EPOCHS,
    FeatureGenerator,
    Plateau,
    PrototypeMaker,
    ServerTraining,
    adaptive_margin,
    descend,
    diversity_loss,
    ensemble_loss,
    gaussian_embedding,
    intra_inter,
    margin_cross_entropy,
    train_on_pairs,
)
from strategies.prototypes.uploads import normalised


def training(lr: float) -> ServerTraining:
    return ServerTraining(torch.Generator().manual_seed, lr, batch_size=32)


def maker_of(embedding: torch.Tensor, start: str = "plain") -> PrototypeMaker:
    with seeded(0):
        return PrototypeMaker(embedding, start)


def test_intra_and_inter_losses():
    vector = HETEROGENEOUS["feddor_server_losses"]
    rows, labels = tensor(vector["client_prototypes"]), torch.tensor(vector["labels"])
    table = tensor(vector["generated_prototypes"])
    intra, inter = intra_inter(rows, labels, table)
    assert float(intra) == pytest.approx(vector["L_intra"], rel=1e-10)
    assert float(inter) == pytest.approx(vector["L_inter"], rel=1e-10)
    server = intra + HETEROGENEOUS["fedorgp"]["gamma"] * inter
    assert float(server) == pytest.approx(HETEROGENEOUS["fedorgp"]["L_server"], rel=1e-10)
    for scaled in (intra_inter(3 * rows, labels, table), intra_inter(rows, labels, 5 * table)):
        torch.testing.assert_close(scaled, (intra, inter))


def test_one_class_has_no_other_to_leave():
    rows, labels = torch.ones(2, 3), torch.zeros(2, dtype=torch.int64)
    assert float(intra_inter(rows, labels, torch.ones(1, 3))[1]) == 0.0


def test_one_step_of_feddors_generator():
    vector = HETEROGENEOUS["feddor_generator_step"]
    maker = maker_of(tensor(vector["E"])).double()
    layers = {"first.weight": "W1", "first.bias": "b1", "second.weight": "W2", "second.bias": "b2"}
    names = {"embedding": "E", **layers}
    with torch.no_grad():
        for own, name in names.items():
            maker.get_parameter(own).copy_(tensor(vector[name]))
    np.testing.assert_allclose(maker().detach(), vector["G_before"], atol=1e-12)
    rows, labels = tensor(vector["uploads"]), torch.tensor(vector["labels"])
    loss = sum(intra_inter(rows, labels, maker()))
    assert float(loss.detach()) == pytest.approx(vector["loss_before"], rel=1e-10)
    descend(list(maker.parameters()), loss, vector["lr"])
    for own, name in names.items():
        expected = tensor(vector["after"][name])
        torch.testing.assert_close(
            maker.get_parameter(own).detach(), expected, atol=1e-7, rtol=1e-7
        )
    after = sum(intra_inter(rows, labels, maker()))
    assert float(after.detach()) == pytest.approx(vector["loss_after"], abs=1e-7)
    broadcast = normalised(maker().detach().numpy())
    np.testing.assert_allclose(broadcast, vector["broadcast_after"], atol=1e-6)


def test_a_residual_or_fitted_generator_starts_at_its_embedding():
    rows = gaussian_embedding(4, 6, seed=3)
    assert torch.equal(maker_of(rows, "residual")(), rows)
    assert not torch.equal(maker_of(rows)(), rows)
    fitted = maker_of(rows, "fitted")
    torch.testing.assert_close(fitted(), rows)
    torch.testing.assert_close(fitted.embedding.detach(), 6**0.5 * rows)


def test_with_more_classes_than_a_last_layer_can_fit_a_fitted_generator_starts_near():
    rows = F.normalize(gaussian_embedding(30, 6, seed=3), dim=1)

    def away(start: str) -> float:
        return float(1 - F.cosine_similarity(maker_of(rows, start)().detach(), rows).mean())

    assert 0.01 < away("fitted") < 0.5 < away("plain")


@pytest.mark.parametrize(("classes", "width"), [(10, 10), (64, 64), (65, 64), (100, 64)])
def test_the_fit_needs_no_large_weights_where_classes_and_features_are_about_equal(classes, width):
    """Large ones would throw the prototypes about in the first step."""
    rows = F.normalize(gaussian_embedding(classes, width, seed=0), dim=1)
    fitted = maker_of(rows, "fitted")
    assert float(fitted.second.weight.detach().norm()) < 10
    assert float(F.cosine_similarity(fitted().detach(), rows).mean()) > 0.8


def epochs_to_plateau(*losses: float) -> int | None:
    """The epochs after which a loss is at its plateau; None if it still falls."""
    plateau = Plateau()
    return next((n for n, loss in enumerate(losses, 1) if plateau.reached(loss)), None)


def test_a_loss_is_at_its_plateau_when_it_stays_for_five_epochs():
    assert epochs_to_plateau(*[1.0] * 9) == 6
    assert epochs_to_plateau(*[float("nan")] * 9) == 5
    assert epochs_to_plateau(*[1.0] * 5, 0.998, *[1.0] * 9) == 11
    assert epochs_to_plateau(*[1.0] * 5, 0.9995, *[1.0] * 9) == 6
    assert epochs_to_plateau(*[1 - n / 4000 for n in range(50)]) is None  # 0.1 % in four epochs
    assert epochs_to_plateau(*[1 - n / 9000 for n in range(50)]) == 6


def test_training_takes_as_many_epochs_as_the_loss_needs():
    rows, classes = torch.rand(12, 6, generator=torch.Generator().manual_seed(1)), np.arange(12) % 4

    def trained(epochs: int | str) -> tuple[PrototypeMaker, int, float]:
        maker = maker_of(gaussian_embedding(4, 6, 3))

        def loss(prototypes: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return sum(intra_inter(prototypes, labels, maker()))

        taken = train_on_pairs(maker, loss, rows.numpy(), classes, training(1.0), 0, epochs)
        ended = loss(rows, torch.from_numpy(classes))
        return maker, taken, float(ended.detach())

    converged, taken, ended = trained("auto")
    assert 6 < taken < MOST_EPOCHS
    same, counted, _ = trained(taken)
    assert counted == taken
    assert torch.equal(same(), converged())
    assert ended < 0.8 * trained(1)[2]
    assert trained("auto")[1] == taken


@pytest.mark.parametrize(
    ("rule", "limit", "name"),
    [("maxmin", 100.0, "maxmin"), ("max", 100.0, "max"), ("maxmin", 1.0, "maxmin_tau1")],
)
def test_fedtgp_margin_and_loss(rule, limit, name):
    vector = HETEROGENEOUS["fedtgp"]
    margin = adaptive_margin(np.array(list(vector["class_centres"].values())), limit, rule)
    assert margin == pytest.approx(vector[f"margin_{name}"], rel=1e-10)
    loss = margin_cross_entropy(
        tensor(vector["client_prototypes"]),
        torch.tensor(vector["labels"]),
        tensor(vector["trainable_prototypes"]),
        margin,
    )
    assert float(loss) == pytest.approx(vector[f"loss_{name}"], rel=1e-10)


def test_a_margin_needs_two_classes():
    assert adaptive_margin(np.ones((1, 3)), 100.0, "maxmin") == 100.0


def test_a_prototype_on_its_target_has_a_finite_gradient():
    table = torch.zeros(2, 3, requires_grad=True)
    margin_cross_entropy(torch.zeros(1, 3), torch.tensor([0]), table, 1.0).backward()
    assert torch.isfinite(table.grad).all()


def test_one_step_of_fedghs_header():
    vector = HETEROGENEOUS["fedgh_header_step"]
    header = nn.Linear(2, 3).double()
    with torch.no_grad():
        header.weight.copy_(tensor(vector["weight"]))
        header.bias.copy_(tensor(vector["bias"]))
    train_on_pairs(
        header,
        lambda rows, labels: F.cross_entropy(header(rows), labels),
        np.array(vector["prototypes"]),
        np.array(vector["labels"]),
        training(vector["lr"]),
        server_round=0,
        epochs=1,
    )
    torch.testing.assert_close(header.weight.detach(), tensor(vector["weight_after"]))
    torch.testing.assert_close(header.bias.detach(), tensor(vector["bias_after"]))


def test_fedgens_loss_is_that_of_the_mean_head():
    vector = HETEROGENEOUS["fedgen_generator_loss"]
    mean = {
        name: sum(
            weight * tensor(head[name])
            for weight, head in zip(vector["weights"], vector["heads"], strict=True)
        )
        for name in ("weight", "bias")
    }
    loss = ensemble_loss(tensor(vector["latents"]), torch.tensor(vector["labels"]), **mean)
    assert float(loss) == pytest.approx(vector["loss"], rel=1e-10)


def test_diversity_is_small_when_features_differ_as_the_noise_does():
    noise, features = tensor([[0.0, 0.0], [1.0, 3.0]]), tensor([[0.0, 0.0, 0.0], [2.0, -4.0, 3.0]])
    # mean squared difference of noise (1 + 9) / 2, mean absolute one of features (2 + 4 + 3) / 3;
    # two of the four pairs are of a row and itself
    expected = np.exp(-(5 * 3 + 3 * 5) / 4)
    assert float(diversity_loss(noise, features)) == pytest.approx(expected)
    assert float(diversity_loss(noise, 0 * features)) == 1.0
    assert float(diversity_loss(noise, 2 * features)) < expected


def test_a_generator_starts_the_same_from_the_same_seed():
    makers = []
    for seed in (1, 1, 2):
        with seeded(seed):
            makers.append(FeatureGenerator(3, 4, 5, 6))
    one, same, other = makers
    noise, labels = torch.rand(7, 5), torch.tensor([0, 1, 2, 0, 1, 2, 0])
    assert one(noise, labels).shape == (7, 4)
    assert torch.equal(one(noise, labels), same(noise, labels))
    assert not torch.equal(one(noise, labels), other(noise, labels))
