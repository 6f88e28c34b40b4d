"""Losses of prototype and mutual methods against the numbers of the specification.

The vectors are float64 evaluations made apart from this code.
"""

import pytest
import torch
from reference import HETEROGENEOUS, tensor
from torch import Tensor

from clients import prototype_losses as losses
from fedapp.models.heads import Head


def table(rows: list) -> tuple[Tensor, Tensor]:
    """Rows with None for absent classes, as prototypes and a mask."""
    width = len(next(row for row in rows if row is not None))
    filled = [row or [0.0] * width for row in rows]
    return tensor(filled), torch.tensor([row is not None for row in rows])


def near(value: Tensor, expected: float) -> None:
    assert float(value.detach()) == pytest.approx(expected, rel=1e-10)


LOCAL = HETEROGENEOUS["feddor_local"]
FEATURES, LABELS = tensor(LOCAL["features"]), torch.tensor(LOCAL["labels"])
PROTOTYPES, ALL = table(LOCAL["global_prototypes"])
KD = HETEROGENEOUS["fedkd_losses"]
PAIR = tensor(KD["personal_logits"]), tensor(KD["mentee_logits"])
KD_LABELS = torch.tensor(KD["labels"])


def test_alignment_and_its_gradient():
    features = FEATURES.clone().requires_grad_()
    loss = losses.cosine_alignment(features, LABELS, PROTOTYPES, ALL)
    near(loss, LOCAL["L_align"])
    loss.backward()
    torch.testing.assert_close(features.grad, tensor(LOCAL["grad_L_align_wrt_features"]))


def test_alignment_without_a_class_keeps_the_denominator():
    vector = HETEROGENEOUS["align_with_missing_prototype"]
    known = torch.tensor(vector["present_mask"])
    near(
        losses.cosine_alignment(FEATURES, LABELS, PROTOTYPES, known),
        vector["L_align_sum_over_present_divided_by_B"],
    )


def test_alignment_ignores_the_prototypes_lengths():
    near(
        losses.cosine_alignment(FEATURES, LABELS, 7.0 * PROTOTYPES, ALL),
        LOCAL["L_align"],
    )


def test_feddor_local_loss_with_the_cosine_head():
    rows, scale = tensor(LOCAL["classifier_weight"]), LOCAL["scale"]
    head = Head(rows, normalise=True, normalise_rows=True, scale=scale, learn_scale=True)
    logits = head(FEATURES)
    torch.testing.assert_close(logits, tensor(LOCAL["logits"]))
    entropy = torch.nn.functional.cross_entropy(logits, LABELS)
    near(entropy, LOCAL["L_CE"])
    align = losses.cosine_alignment(FEATURES, LABELS, PROTOTYPES, ALL)
    near(10 * entropy + align, LOCAL["L_local"])
    entropy.backward()
    near(head.scale.grad, LOCAL["dL_CE_dscale"])


def test_fedproto_term():
    vector = HETEROGENEOUS["fedproto_local_term"]
    prototypes, known = table(vector["global_prototypes"])
    labels = torch.tensor(vector["labels"])
    near(
        losses.prototype_mse(tensor(vector["features"]), labels, prototypes, known),
        vector["mse"],
    )


def test_fedorgp_client_loss():
    vector = HETEROGENEOUS["fedorgp"]
    entropy = torch.nn.functional.cross_entropy(tensor(vector["client_CE_logits"]), LABELS)
    align = losses.cosine_alignment(FEATURES, LABELS, PROTOTYPES, ALL)
    near(entropy + vector["lambda_client"] * align, vector["L_client"])


def test_fd_loss_takes_the_softmax_of_class_logits():
    vector = HETEROGENEOUS["fd_loss"]
    logits, labels = tensor(vector["logits"]), torch.tensor(vector["labels"])
    known = torch.ones(3, dtype=torch.bool)
    near(
        losses.soft_cross_entropy(logits, labels, tensor(vector["global_logits"]), known),
        vector["distill"],
    )


@pytest.mark.parametrize("reduction", ["mean", "batchmean"])
def test_fedkd_losses(reduction):
    weight = tensor(KD["W_h_weight_out_by_in"])
    features = tensor(KD["personal_features"]), tensor(KD["mentee_features"]) @ weight.T
    own, other = losses.adaptive_mutual(PAIR, features, KD_LABELS, reduction == "mean")
    near(own, KD[reduction]["L_personal"])
    near(other, KD[reduction]["L_mentee"])


def test_detached_fedkd_has_the_same_values_and_other_gradients():
    features = tensor(KD["personal_features"]), tensor(KD["mentee_features"])
    gradients = []
    for detach in (False, True):
        personal = PAIR[0].clone().requires_grad_()
        losses_of_pair = losses.adaptive_mutual(
            (personal, PAIR[1]), features, KD_LABELS, detach=detach
        )
        sum(losses_of_pair).backward()
        gradients.append((float(sum(losses_of_pair).detach()), personal.grad))
    assert gradients[0][0] == pytest.approx(gradients[1][0])
    assert not torch.allclose(gradients[0][1], gradients[1][1])


def test_detached_fedkd_teaches_features_once():
    pair = [logits.clone().requires_grad_() for logits in PAIR]
    start = tensor(KD["personal_features"]), tensor(KD["mentee_features"])
    features = [values.clone().requires_grad_() for values in start]
    sum(losses.adaptive_mutual(tuple(pair), tuple(features), KD_LABELS, detach=True)).backward()
    alone = sum(torch.nn.functional.cross_entropy(logits, KD_LABELS) for logits in PAIR)
    once = 2 * (start[0] - start[1]) / start[0].numel() / alone
    assert torch.allclose(features[0].grad, once)
    assert torch.allclose(features[1].grad, -once)


def test_detached_fedkd_has_the_gradients_of_constants():
    """The other model's logits and the sum of both losses are numbers, not functions."""
    pair = [logits.clone().requires_grad_() for logits in PAIR]
    features = tensor(KD["personal_features"]), tensor(KD["mentee_features"])
    sum(losses.adaptive_mutual(tuple(pair), features, KD_LABELS, detach=True)).backward()
    alone = float(sum(torch.nn.functional.cross_entropy(logits, KD_LABELS) for logits in PAIR))
    for own, other in (pair, pair[::-1]):
        written = own.detach().clone().requires_grad_()
        near = torch.nn.functional.cross_entropy(written, KD_LABELS)
        kl = torch.nn.functional.kl_div(
            written.log_softmax(1), other.detach().softmax(1), reduction="mean"
        )
        (near + kl / alone).backward()
        torch.testing.assert_close(own.grad, written.grad)


def test_fml_with_constants_and_two_weights():
    pair = [logits.clone().requires_grad_() for logits in PAIR]
    both = losses.mutual(*pair, KD_LABELS, 0.3, 0.8, per_element=False, detach=True)
    sum(both).backward()
    for own, other, weight, loss in (
        (pair[0], pair[1], 0.3, both[0]),
        (pair[1], pair[0], 0.8, both[1]),
    ):
        written = own.detach().clone().requires_grad_()
        kl = torch.nn.functional.kl_div(
            written.log_softmax(1), other.detach().softmax(1), reduction="batchmean"
        )
        expected = weight * torch.nn.functional.cross_entropy(written, KD_LABELS)
        expected = expected + (1 - weight) * kl
        expected.backward()
        near(loss, float(expected.detach()))
        torch.testing.assert_close(own.grad, written.grad)


def test_fml_losses():
    vector = HETEROGENEOUS["fml_loss"]
    own, other = losses.mutual(*PAIR, KD_LABELS, vector["alpha"], vector["beta"])
    near(own, vector["L_personal"])
    near(other, vector["L_mentee"])


def test_fml_can_average_over_the_batch_and_teach_with_constants():
    ce, apart = (losses.mutual(*PAIR, KD_LABELS, share, share)[0] for share in (1.0, 0.0))
    whole = losses.mutual(*PAIR, KD_LABELS, 0.5, 0.5, per_element=False)[0]
    near(whole, float(ce + PAIR[0].shape[1] * apart) / 2)
    meme = PAIR[1].clone().requires_grad_()
    own, other = losses.mutual(PAIR[0], meme, KD_LABELS, detach=True)
    assert not own.requires_grad
    assert other.requires_grad


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("raw-mean", "raw_mean"),
        ("mean-of-normalised", "mean_of_normalized"),
        ("normalised-mean", "normalized_mean"),
    ],
)
def test_class_means(kind, name):
    vector = HETEROGENEOUS["prototype_means"]
    means, counts = losses.class_means(
        tensor(vector["features"]), torch.tensor(vector["labels"]), vector["num_classes"], kind
    )
    assert counts.tolist() == vector["counts"]
    expected, present = table(vector[name])
    torch.testing.assert_close(means[present], expected[present])


def test_the_nearest_prototype_of_two_equally_near_ones_is_the_lowest():
    vector = HETEROGENEOUS["nearest_prototype"]
    prototypes, known = table(vector["global_prototypes"])
    query = tensor(vector["query"])[None]
    assert losses.nearest_prototype(query, prototypes, known).tolist() == [vector["predicted"]]


def test_the_nearest_prototype_by_cosine_ignores_length_and_unknown_classes():
    prototypes = tensor([[10.0, 10.0], [0.0, 0.1], [1.0, 0.0]])
    known = torch.tensor([True, True, False])
    queries = tensor([[0.1, 3.0], [5.0, 0.0]])
    assert losses.nearest_prototype(queries, prototypes, known, cosine=True).tolist() == [1, 0]
