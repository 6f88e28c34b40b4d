"""What of the use of GPUs can be checked without one: choices, sentences, settings, seeds."""

import os
import stat
from pathlib import Path

import pytest
import torch
from in_process import federate, settings

from clients.base import LocalClient
from fedapp import server_app
from fedapp.config.resolve import parse_config
from fedapp.core import hardware
from fedapp.core.errors import UserError
from fedapp.core.hardware import choose_device, gpu_names, set_float32_precision
from fedapp.engines.deployment import doctor
from fedapp.engines.launch import environment_for
from fedapp.engines.resources import Resources
from fedapp.experiments import jobs
from fedapp.runtime.node import messages as client
from fedapp.runtime.node import queries
from fedapp.runtime.process import context as process
from fedapp.runtime.process.context import ProcessContext

FULL = torch.OutOfMemoryError(
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 79.10 GiB of which 1.00 GiB is "
    "free. Process 7 has 78.00 GiB memory in use. See documentation for Memory Management"
)
SENTENCE = (
    "a GPU's memory is full (CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 79.10 GiB "
    "of which 1.00 GiB is free); use fewer workers on it (--workers), a smaller batch-size or "
    "device='cpu'"
)


def test_the_driver_lists_one_gpu_a_line_whatever_its_name(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\necho 'GPU 0: NVIDIA GeForce RTX 3070 Laptop GPU (UUID: GPU-1)'\n"
        "echo 'GPU 1: NVIDIA H100 (UUID: GPU-2)'\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert gpu_names() == ["0", "1"]


def test_workers_share_gpus_unless_the_device_says_otherwise(monkeypatch):
    monkeypatch.setattr("fedapp.engines.resources.cores", lambda: 16)
    monkeypatch.setattr("fedapp.engines.resources.gpu_names", lambda: ["0", "1"])
    assert Resources().resolve(100) == Resources(32, 8, 0.25)
    assert Resources().resolve(100, device="cuda") == Resources(32, 8, 0.25)
    assert Resources().resolve(100, device="cpu") == Resources(64, 16, 0.0)
    assert Resources().resolve(100, device="cuda:1") == Resources(16, 4, 0.0)  # all are shown
    assert Resources(gpus=1.0).resolve(100) == Resources(8, 2, 1.0)
    assert Resources(gpus=0.1).resolve(100) == Resources(80, 20, 0.1)
    assert Resources(gpus=4.0).resolve(100) == Resources(4, 1, 4.0)
    assert Resources(workers=3, gpus=1.0).resolve(100).workers == 3


@pytest.mark.parametrize("share", ["nan", "inf"])
def test_a_share_of_gpus_is_a_finite_number(share):
    with pytest.raises(UserError, match=f"^--gpus is {share}; give a share of a GPU per worker"):
        Resources(gpus=float(share))


def test_a_share_of_a_gpu_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr("fedapp.engines.resources.gpu_names", list)
    with pytest.raises(UserError, match=r"--gpus is 0\.5, but this machine has no GPU: leave"):
        Resources(gpus=0.5).resolve(10)
    assert Resources(gpus=0.5).resolve(10, device="cpu").gpus == 0.5
    assert Resources(gpus=0.0).resolve(10).gpus == 0.0
    monkeypatch.setenv("RAY_ADDRESS", "cluster:6379")  # which may have some
    assert Resources(gpus=0.5).resolve(10).gpus == 0.5


def test_without_a_share_of_them_gpus_are_hidden(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    hidden = environment_for(tmp_path, Resources(gpus=0.0))
    assert hidden["CUDA_VISIBLE_DEVICES"] == ""
    assert environment_for(tmp_path, Resources())["CUDA_VISIBLE_DEVICES"] == "0,1"


def test_processes_of_their_own_take_the_gpu_with_the_fewest_of_them(tmp_path, monkeypatch):
    taken = []

    def run_task(module, task, env, **_):
        taken.append(env.get("CUDA_VISIBLE_DEVICES"))
        return 0

    monkeypatch.setattr(jobs, "run_task", run_task)
    for visible in ("2,5", "4"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        for name in "ab":
            jobs.run_in_subprocess(
                Path(), {"output-dir": str(tmp_path), "run-name": name}, Resources()
            )
    assert taken == ["2", "2", "4", "4"]  # one after the other, so that the first one is free
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    named = {"output-dir": str(tmp_path), "run-name": "c"}
    jobs.run_in_subprocess(Path(), {**named, "device": "cuda:1"}, Resources())
    project = tmp_path / "project"
    project.mkdir()
    (project / "pyproject.toml").write_text('[tool.flwr.app.config]\ndevice = "cuda:0"\n')
    jobs.run_in_subprocess(project, named, Resources())
    assert taken[4:] == ["2,5", "2,5"]
    with jobs._environment("auto") as one, jobs._environment("auto") as two:
        assert {one["CUDA_VISIBLE_DEVICES"], two["CUDA_VISIBLE_DEVICES"]} == {"2", "5"}


def test_a_client_without_memory_says_so_in_one_sentence(monkeypatch):
    def work(*_):
        raise FULL

    monkeypatch.setattr(LocalClient, "work", work)
    with pytest.raises(Exception, match="memory is full") as caught:
        federate(settings(num_rounds=1))
    assert SENTENCE in str(caught.value)
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize(
    "words",
    [
        "CUDA error: out of memory\nCUDA kernel errors might be reported later.",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    ],
)
def test_a_gpu_that_is_full_before_the_first_model_is_one_sentence_of_the_node(monkeypatch, words):
    def full(*_):
        raise RuntimeError(words)

    monkeypatch.setattr(client, "open_process", full)
    with pytest.raises(Exception, match="GPU's memory is full") as caught:
        federate(settings(num_rounds=1))
    assert "Traceback" not in str(caught.value)
    monkeypatch.setattr(queries, "describe", full)
    with pytest.raises(UserError, match="cannot take part: a GPU's memory is full") as caught:
        federate(settings(num_rounds=1))
    assert "\n" not in str(caught.value)


def test_nvidia_smi_is_asked_once_and_not_for_ever(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(hardware, "_PATIENCE", 0.1)
    with pytest.raises(UserError, match="nvidia-smi -L does not answer: a GPU may be lost"):
        gpu_names()
    program.write_text(f"#!/bin/sh\necho x >> {tmp_path}/asked\necho 'GPU 0: NVIDIA H100'\n")
    monkeypatch.setattr(hardware, "_PATIENCE", 30.0)
    assert gpu_names() == gpu_names() == ["0"]
    assert (tmp_path / "asked").read_text() == "x\n"


def test_a_server_without_memory_says_so_in_one_sentence(tmp_path, monkeypatch):
    def full(*_):
        raise FULL

    monkeypatch.setattr(server_app, "ProcessContext", full)
    values = settings(output_dir=str(tmp_path))
    with pytest.raises(UserError) as caught:
        server_app.run(None, values, "", 0.0)
    assert str(caught.value) == f"the server: {SENTENCE}"


def test_gpus_that_pytorch_cannot_use_are_none(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == torch.device("cpu")
    with pytest.raises(UserError, match="'cuda:1' but this machine has 0 CUDA devices"):
        choose_device("cuda:1")
    monkeypatch.setattr(doctor, "gpu_names", lambda: ["0", "1"])
    with pytest.raises(UserError, match="cannot use them: it is made for CUDA"):
        doctor._devices()
    monkeypatch.setattr(doctor, "gpu_names", list)
    assert doctor._devices().endswith("no GPU")


def test_float32_is_float32_in_convolutions_too_after_tf32():
    asked = []
    for precision in ("tf32", "fp32", "bf16-teacher"):
        set_float32_precision(precision)
        asked.append((torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32))
    assert asked == [("high", True), ("highest", False), ("highest", False)]


def test_every_node_sets_its_precision():
    ProcessContext(parse_config(settings(precision="tf32")))
    assert torch.get_float32_matmul_precision() == "high"
    ProcessContext(parse_config(settings()))
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize("method", ["fedavg", "feddor", "fedkd", "fedgen"])
def test_building_models_leaves_the_generators_of_gpus_alone(monkeypatch, method):
    def touched(*_):
        raise AssertionError("a GPU's generator was seeded")

    made = ProcessContext(parse_config(settings(method=method)))
    monkeypatch.setattr(torch.cuda, "manual_seed_all", touched)
    monkeypatch.setattr(torch.cuda, "manual_seed", touched)
    place = made.slot_of(0)
    place.build()
    made.method.server.parts(made.setup)


def test_a_process_holds_one_node_at_a_time():
    first = process.open_process(settings(), {})
    assert process.open_process(settings(), {}) is first
    process.open_process(settings(seed=1), {})
    assert len(process._opened) == 1
    assert process.open_process(settings(), {}) is not first


def test_a_run_without_threads_of_its_own_has_pytorchs_number_also_after_another_run():
    usual = torch.get_num_threads()
    process.open_process(settings(threads=usual + 1), {})
    assert torch.get_num_threads() == usual + 1
    process.open_process(settings(threads=usual + 2), {})
    process.open_process(settings(threads=0), {})
    assert torch.get_num_threads() == usual
    process.close_process()
    assert torch.get_num_threads() == usual
