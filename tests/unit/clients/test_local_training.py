"""The training loop and its optimiser: PyTorch's bits, less to import, honest failures."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from clients.training.local_training import FrozenModels, LocalSettings, LossDiverged, train
from clients.training.objective import Objective
from clients.training.sgd import FusedSGD
from fedapp.models.model import build_model


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 1e-2])
def test_fused_sgd_is_torch_optim_sgd_bit_for_bit(momentum, weight_decay):
    torch.manual_seed(0)
    ours = [nn.Parameter(torch.randn(7, 5)), nn.Parameter(torch.randn(3))]
    theirs = [nn.Parameter(p.detach().clone()) for p in ours]
    fused = FusedSGD(ours, 0.1, momentum, weight_decay)
    reference = torch.optim.SGD(theirs, 0.1, momentum, weight_decay=weight_decay, fused=True)
    for _ in range(5):
        for own, other in zip(ours, theirs, strict=True):
            own.grad = torch.randn_like(own)
            other.grad = own.grad.clone()
        fused.step()
        reference.step()
        for own, other in zip(ours, theirs, strict=True):
            assert torch.equal(own, other)
    fused.zero_grad()
    assert all(parameter.grad is None for parameter in ours)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_parameter_without_a_gradient_is_left_as_torch_optim_leaves_it(momentum):
    """As with a loss on the features alone, which gives the head no gradient."""
    ours = [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2))]
    theirs = [nn.Parameter(p.detach().clone()) for p in ours]
    fused = FusedSGD(ours, 0.1, momentum, 1e-2)
    reference = torch.optim.SGD(theirs, 0.1, momentum, weight_decay=1e-2)
    for trained in ([0], [0, 1], [1]):
        for index in range(2):
            given = torch.full_like(ours[index], 0.5) if index in trained else None
            ours[index].grad = given
            theirs[index].grad = None if given is None else given.clone()
        fused.step()
        reference.step()
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("of_gradient", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("kernel", [1, 3])
def test_the_layouts_of_weights_and_gradients_do_not_change_a_step(
    momentum, layout, of_gradient, kernel
):
    torch.manual_seed(0)
    theirs = nn.Parameter(torch.randn(6, 5, kernel, kernel))
    ours = nn.Parameter(theirs.detach().clone(memory_format=layout))
    fused = FusedSGD([ours], 0.1, momentum, 1e-2)
    reference = torch.optim.SGD([theirs], 0.1, momentum, weight_decay=1e-2, fused=True)
    for _ in range(3):
        gradient = torch.randn_like(theirs)
        theirs.grad, ours.grad = gradient, gradient.clone(memory_format=of_gradient)
        fused.step()
        reference.step()
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
        assert ours.is_contiguous(memory_format=layout)


def _data(count=40, size=8):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, 1, size, size, generator=generator), torch.arange(count) % 3


def _epoch():
    images, labels = _data()
    return lambda: zip(images.split(10), labels.split(10), strict=True)


@pytest.mark.parametrize("regulariser", ["kd", "ntd"])
def test_in_bfloat16_a_student_equal_to_its_teacher_is_not_moved_by_distillation(regulariser):
    """Autocast on a CPU leaves log-softmax in bfloat16, whose rounding would be a gradient."""
    student, teacher = (build_model("cnn", "linear", 1, 8, 3, seed=5) for _ in range(2))
    objective = Objective("ce", regulariser, base_weight=0.0, reg_weight=1.0, tau=3.0)
    settings = LocalSettings(epochs=1, momentum=0.0, precision="bf16")
    result = train(student, FrozenModels(teacher), objective, _epoch(), 1.0, settings)
    assert abs(result.loss) < 1e-6
    for moved, kept in zip(student.parameters(), teacher.parameters(), strict=True):
        torch.testing.assert_close(moved, kept, rtol=0, atol=1e-6)


@pytest.mark.parametrize("clip_norm", [0.0, 0.05])
def test_training_is_a_plain_pytorch_loop_bit_for_bit(clip_norm):
    model, plain = (build_model("cnn", "linear", 1, 8, 3, seed=5) for _ in range(2))
    settings = LocalSettings(epochs=2, momentum=0.9, weight_decay=1e-3, clip_norm=clip_norm)
    result = train(model, FrozenModels(), Objective("ce"), _epoch(), 0.1, settings)
    optimiser = torch.optim.SGD(plain.parameters(), 0.1, 0.9, weight_decay=1e-3, fused=True)
    losses = []
    for _ in range(2):
        for images, labels in _epoch()():
            loss = nn.functional.cross_entropy(plain(images)[1], labels)
            optimiser.zero_grad()
            loss.backward()
            if clip_norm:
                nn.utils.clip_grad_norm_(plain.parameters(), clip_norm)
            optimiser.step()
            losses.append(loss.item())
    for own, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(own, other)
    assert (result.steps, result.images) == (8, 80)
    assert result.loss == pytest.approx(sum(losses) / 8, rel=1e-6)


def test_a_loss_that_is_not_finite_is_a_divergence():
    model = build_model("cnn", "linear", 1, 8, 3, seed=5)
    with pytest.raises(LossDiverged, match="after 4 steps at lr 1e\\+20"):
        train(model, FrozenModels(), Objective("ce"), _epoch(), 1e20, LocalSettings(epochs=5))


def test_bf16_trains_close_to_fp32():
    losses = {}
    for precision in ("fp32", "bf16"):
        model = build_model("cnn", "linear", 1, 8, 3, seed=5)
        settings = LocalSettings(epochs=3, precision=precision)
        losses[precision] = train(
            model, FrozenModels(), Objective("ce"), _epoch(), 0.05, settings
        ).loss
    assert losses["bf16"] != losses["fp32"]
    assert losses["bf16"] == pytest.approx(losses["fp32"], rel=0.05)


@pytest.mark.parametrize(
    ("objective", "head"),
    [
        (Objective("dr", "fd", 0.9, 0.1), "etf"),
        (Objective("ce", "ntd", 1.0, 0.5), "linear"),
        (Objective("ce", "moon", 1.0, 0.5, tau=0.5), "linear"),
    ],
)
def test_a_teacher_in_bf16_changes_the_distillation_a_little_and_nothing_else(objective, head):
    results = {}
    for precision in ("fp32", "bf16-teacher"):
        own, teacher, previous = (build_model("cnn", head, 1, 8, 3, seed=s) for s in (5, 6, 7))
        for frozen in (teacher, previous):
            frozen.requires_grad_(False).eval()
        settings = LocalSettings(epochs=3, precision=precision)
        frozen = FrozenModels(teacher, previous)
        result = train(own, frozen, objective, _epoch(), 0.05, settings)
        assert all(tensor.dtype == torch.float32 for tensor in own.state_dict().values())
        plain = build_model("cnn", head, 1, 8, 3, seed=5)
        train(plain, frozen, Objective("ce"), _epoch(), 0.05, settings)
        results[precision] = result.loss, [tensor.clone() for tensor in plain.state_dict().values()]
    assert results["bf16-teacher"][0] != results["fp32"][0]
    assert results["bf16-teacher"][0] == pytest.approx(results["fp32"][0], rel=0.01)
    for low, full in zip(results["bf16-teacher"][1], results["fp32"][1], strict=True):
        assert torch.equal(low, full)  # without a teacher it is fp32


def test_a_worker_imports_only_what_training_needs(tmp_path):
    """Query and training import no plotting, torchvision, scikit-learn (cached) or compiler."""
    code = """
import sys
from in_process import federate, settings
federate(settings(num_rounds=1))
heavy = {"torchvision", "sklearn", "matplotlib", "PIL", "pandas", "torch._dynamo", "sympy", "ray"}
print(sorted(heavy & sys.modules.keys()))
"""
    from fedapp.data.datasets import load_dataset

    load_dataset("digits")  # fills the cache that the child process finds
    root = str(__import__("pathlib").Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root
    )
    assert done.stdout.strip().splitlines()[-1] == "[]"


def test_the_data_are_loaded_once_per_process(monkeypatch):
    from in_process import federate, settings

    from fedapp.runtime.process import run_data

    calls = []
    original = run_data.load_dataset

    def counted(*arguments, **options):
        calls.append(arguments)
        return original(*arguments, **options)

    monkeypatch.setattr(run_data, "load_dataset", counted)
    run_data.clear_data_cache()
    federate(settings(num_rounds=3), nodes=5)
    assert len(calls) == 1
