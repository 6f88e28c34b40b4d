"""Starting from trained weights: what is taken, what is new, and what is refused."""

import re
import shutil

import numpy as np
import pytest
import torch
from in_process import InProcessGrid, assert_same, federate, settings

from fedapp import server_app
from fedapp.analysis.saved_runs import SavedRun
from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError
from fedapp.models.initial import digest, find_initial, load_initial
from fedapp.models.model import build_model
from fedapp.results.run_directory import RunDirectory
from fedapp.runtime.process.context import ProcessContext
from fedapp.runtime.process.earlier_run import changed_file


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The directory of a finished run of fedavg."""
    folder = tmp_path_factory.mktemp("runs")
    run = settings(method="fedavg", output_dir=str(folder), run_name="done", num_rounds=1)
    server_app.run(InProcessGrid(run, 2), run, "", 0.0)
    return folder / "done"


def weights(node):
    return {name: tensor.detach().numpy() for name, tensor in node.model.state_dict().items()}


def test_a_run_starts_where_another_ended(finished):
    start = weights(
        ProcessContext(parse_config(settings(method="fedavg", initial_model=str(finished))))
    )
    from safetensors.numpy import load_file

    assert_same(start, {name: load_file(finished / "model.safetensors")[name] for name in start})
    run = settings(method="fedavg", seed=3, initial_model="done", data_dir=str(finished.parent))
    trained = federate(run, nodes=2)[0]
    assert_same(trained, federate(run, nodes=5)[0])
    with pytest.raises(AssertionError):
        assert_same(trained, federate(settings(method="fedavg", seed=3))[0])


@pytest.mark.parametrize("method", ["dr", "fedbabu", "spherefed"])
def test_a_frozen_head_stays_the_methods_own(method, finished):
    plain = ProcessContext(parse_config(settings(method=method)))
    started = ProcessContext(parse_config(settings(method=method, initial_model=str(finished))))
    assert plain.head_hash() == started.head_hash() != ""
    before, after = weights(plain), weights(started)
    assert not np.array_equal(before["extractor.0.weight"], after["extractor.0.weight"])


def test_a_learned_scale_of_a_frozen_head_is_loaded(tmp_path):
    kept = build_model("cnn", "etf-scaled", 1, 8, 10, seed=1)
    with torch.no_grad():
        kept.head.scale.fill_(6.0)
    torch.save(kept.state_dict(), tmp_path / "kept.pth")
    model = build_model("cnn", "etf-scaled", 1, 8, 10, seed=2)
    rows = model.head.weight.detach().clone()
    load_initial(model, tmp_path / "kept.pth")
    assert model.head.scale.item() == 6.0
    assert torch.equal(model.head.weight, rows)
    assert torch.equal(model.extractor[0].weight, kept.extractor[0].weight)


def test_every_copy_in_a_process_starts_there(finished):
    node = ProcessContext(parse_config(settings(method="ditto", initial_model=str(finished))))
    for tensor, copy in zip(
        node.model.parameters(), node.slot.spare("initial").parameters(), strict=True
    ):
        assert torch.equal(tensor, copy)


def torchvision_weights(path):
    from torchvision.models import resnet18

    with torch.random.fork_rng():
        torch.manual_seed(7)
        network = resnet18(weights=None)
    torch.save(network.state_dict(), path)
    return network.state_dict()


@pytest.mark.parametrize("bn", ["running", "batch"])
def test_imagenet_weights_come_from_the_cache_with_a_new_head(tmp_path, monkeypatch, bn):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    with pytest.raises(UserError, match=r"resnet18-f37072fd.pth is neither .* download=true"):
        find_initial("imagenet", "", download=False)
    (tmp_path / "hub" / "checkpoints").mkdir(parents=True)
    stored = torchvision_weights(tmp_path / "hub" / "checkpoints" / "resnet18-f37072fd.pth")
    path = find_initial("imagenet", "", download=False)
    model = build_model("resnet18-imagenet-stem", "linear", 3, 32, 10, seed=0, bn=bn)
    head = model.head.weight.detach().clone()
    taken = load_initial(model, path).extractor.state_dict()
    assert all(torch.equal(tensor, stored[name]) for name, tensor in taken.items())
    assert ("bn1.running_mean" in taken) == (bn == "running")
    assert torch.equal(model.head.weight, head)
    small = build_model("resnet18", "linear", 3, 32, 10, seed=0)
    with pytest.raises(UserError, match=r"'extractor.conv1.weight' is \[64, 3, 3, 3\] and"):
        load_initial(small, path)


def test_a_head_for_other_classes_is_new(finished):
    model = build_model("cnn", "linear", 1, 8, 7, seed=0)
    head = model.head.weight.detach().clone()
    load_initial(model, finished / "model.safetensors")
    assert torch.equal(model.head.weight, head)


def test_a_model_without_running_averages_does_not_start_one_with_them(tmp_path):
    trained = build_model("mobilenet", "linear", 3, 32, 10, seed=0, bn="batch")
    torch.save(trained.state_dict(), tmp_path / "batch.pth")
    model = build_model("mobilenet", "linear", 3, 32, 10, seed=0, bn="running")
    with pytest.raises(UserError, match=r"batch.pth has no running averages .* set bn='batch'"):
        load_initial(model, tmp_path / "batch.pth")


def test_what_cannot_be_used_is_named(tmp_path, finished):
    model = build_model("cnn", "linear", 1, 8, 10, seed=0)
    with pytest.raises(UserError, match="no such file or run directory"):
        ProcessContext(parse_config(settings(initial_model="absent.safetensors")))
    for name, content in (("a.safetensors", b"rubbish"), ("a.pth", b"rubbish")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match="cannot be read as weights"):
            load_initial(model, tmp_path / name)
    torch.save({"epoch": 3}, tmp_path / "b.pth")
    with pytest.raises(UserError, match="must contain a state dict"):
        load_initial(model, tmp_path / "b.pth")
    with pytest.raises(UserError, match="needs model resnet18 or resnet18-imagenet-stem"):
        parse_config(settings(initial_model="imagenet"))
    with pytest.raises(UserError, match="have architectures of their own"):
        parse_config(settings(method="feddor", initial_model="imagenet"))


def test_nodes_with_another_file_are_refused(finished, tmp_path):
    path = finished / "model.safetensors"
    assert digest(path) == digest(path) != digest(None) == "none"
    assert digest(finished / "summary.json") != digest(path)


def test_a_finished_run_is_reopened_only_with_its_initial_model_and_extension(finished, tmp_path):
    start = shutil.copytree(finished, tmp_path / "start") / "model.safetensors"
    values = settings(
        method="fedavg", initial_model=str(start), num_rounds=1, output_dir=str(tmp_path),
        run_name="next",
    )  # fmt: skip
    server_app.run(InProcessGrid(values, 2), values, "", 0.0)
    run = RunDirectory.load(tmp_path / "next")
    before = run.summary()["versions"]
    assert before["initial model"] == f"model.safetensors {digest(start)}"
    config = parse_config(run.config())
    assert changed_file(run, config) == ""
    shutil.copy(run.path / "model.safetensors", start)
    reason = f"the initial model {before['initial model']} instead of .* {digest(start)}"
    assert re.search(reason, changed_file(run, config))

    def resume():
        longer = {**values, "num-rounds": 2, "resume": "auto"}
        server_app.run(InProcessGrid(longer, 2), longer, "", 0.0)

    for attempt in (lambda: SavedRun(run), resume):  # the final model needs no initial one
        with pytest.raises(UserError, match=f"next was trained with {reason}"):
            attempt()

    def record(**versions):
        run.write_summary({**run.summary(), "versions": versions})

    record(extension="own.py 0123")
    with pytest.raises(UserError, match=r"next was trained with files .* --extension own\.py$"):
        SavedRun(run)
    record(extension="none", split="none")  # of a version that did not record initial models
    SavedRun(run)
    record(**before)
    start.unlink()
    assert changed_file(run, config) == ""
