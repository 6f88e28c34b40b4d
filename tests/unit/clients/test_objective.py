"""What an objective refuses in a loss of a user's own."""

import pytest
import torch

from clients.training.objective import BASE_LOSSES, NotScalarError, Objective, Step

LABELS = torch.tensor([0, 1])


def step_of(logits: torch.Tensor) -> Step:
    return Step(LABELS, torch.zeros(2, 3), logits, torch.zeros(2, 3))


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda step: None, "the loss 'bad' returns None but must return one number as a tensor"),
        (lambda step: 1.5, r"the loss 'bad' returns 1\.5 but must return one number"),
        (lambda step: step.logits.exp(), r"'bad' has the shape \[2, 2\] but must be one number"),
        (lambda step: step.logits.argmax(), r"of a floating type \(it is torch\.int64\)"),
        (lambda step: step.logits.sum().detach(), "'bad' does not depend on the model: compute it"),
    ],
)
def test_a_loss_that_is_no_number_of_the_model_is_one_sentence(monkeypatch, loss, message):
    monkeypatch.setitem(BASE_LOSSES, "bad", loss)
    logits = torch.zeros(2, 2, requires_grad=True)
    with pytest.raises(NotScalarError, match=message):
        Objective("bad")(step_of(logits))


def test_objectives_are_compared_without_their_tensors():
    counts = torch.tensor([1, 2])
    assert Objective("ce") == Objective("ce", class_counts=counts)
    assert Objective("ce", class_counts=counts) != Objective("dr", class_counts=counts)


def test_without_gradients_a_loss_needs_none():
    with torch.no_grad():
        assert Objective("ce")(step_of(torch.zeros(2, 2))) == pytest.approx(0.6931, abs=1e-4)
