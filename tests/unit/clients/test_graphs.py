"""Steps recorded as CUDA graphs: when they are recorded, and that they equal steps in turn."""

from contextlib import nullcontext

import pytest
import torch
from in_process import settings
from torch import nn

from clients.training.graphs import _Recorder, _Replayed, replayed
from clients.training.local_training import FrozenModels, LocalSettings, train
from clients.training.objective import Objective
from fedapp.config.resolve import parse_config
from fedapp.models.model import build_model
from fedapp.runtime.process.context import ProcessContext


class Recorder(_Recorder):
    """Records without a GPU: a replay does the recorded work again, on the recorded tensors."""

    def __init__(self, works=True):
        self.works, self.recorded, self.replays = works, 0, 0

    def record(self, work):
        if self.works:
            self.recorded += 1
            self.work = work
            return self
        return None

    def replay(self):
        self.replays += 1
        self.work()


def batches(sizes):
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn(size, 3, generator=generator), torch.arange(size)) for size in sizes]


def losses(step, sizes):
    return [float(step(inputs, labels)) for inputs, labels in batches(sizes)]


def mean(inputs, labels):
    return (inputs.sum(1) * labels).mean()


def test_a_step_is_recorded_after_two_batches_and_replayed_on_equal_shapes():
    recorder = Recorder()
    sizes = [4, 4, 4, 2, 4, 4, 2]
    assert losses(_Replayed(mean, recorder), sizes) == losses(mean, sizes)
    assert (recorder.recorded, recorder.replays) == (1, 3)


def test_a_step_that_cannot_be_recorded_is_taken_as_it_is():
    class Failing(Recorder):
        def record(self, work):
            self.works, self.recorded = False, self.recorded + 1

    recorder = Failing()
    assert losses(_Replayed(mean, recorder), [4] * 6) == losses(mean, [4] * 6)
    assert losses(_Replayed(mean, recorder), [4] * 6) == losses(mean, [4] * 6)
    assert recorder.recorded == 1


def test_on_a_cpu_nothing_is_recorded():
    with replayed(mean, torch.device("cpu")) as step:
        assert step is mean


@pytest.mark.parametrize(
    ("method", "offered"), [("fedavg", 1), ("scaffold", 1), ("ditto", 1), ("per-fedavg", 0)]
)
def test_own_gradients_are_offered_only_where_a_client_says_so(method, offered, monkeypatch):
    """Ditto's global model trains with the usual gradients; its personal model has its own."""
    seen = []
    monkeypatch.setattr(
        "clients.training.local_training.replayed",
        lambda step, device: seen.append(device) or nullcontext(step),
    )
    process = ProcessContext(parse_config(settings(method=method, cuda_graphs=True)))
    client = process.client(0, server_round=1)
    received = {name: t.detach().cpu().numpy().copy() for name, t in client.shared.items()}
    client.work(received, 1, 0.05)
    assert len(seen) == offered


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("regulariser", [None, "ntd"])
def test_recorded_training_has_the_bits_of_training_in_turn(regulariser):
    objective = Objective(regulariser=regulariser, reg_weight=float(regulariser is not None))
    found = [trained(objective, graphs) for graphs in (False, True)]
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


def trained(objective, graphs) -> list[torch.Tensor]:
    torch.backends.cudnn.deterministic = True
    models: list[nn.Module] = [
        build_model("cnn", "linear", 1, 8, 10, 0, "batch", "cuda") for _ in range(2)
    ]
    generator = torch.Generator().manual_seed(0)
    epoch = [(torch.randn(10, 1, 8, 8, generator=generator).cuda(), torch.arange(10).cuda())] * 8
    settings = LocalSettings(2, graphs=graphs)
    train(models[0], FrozenModels(models[1].eval()), objective, lambda: epoch, 0.05, settings)
    return [parameter.detach() for parameter in models[0].parameters()]
