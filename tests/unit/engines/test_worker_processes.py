"""Worker processes of the app's own: who answers, who is left out, what a lost process means."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from flwr.app import Message, RecordDict
from in_process import settings
from waiting import wait_until

from fedapp.engines import workers
from fedapp.engines.resources import Resources
from fedapp.engines.worker_template import kill_workers
from fedapp.engines.workers import WorkerGrid, visible_gpu

CLIENTAPP = "fedapp.client_app:app"
TESTS = Path(__file__).parents[2]
ROOT = TESTS.parent


@pytest.fixture(scope="module")
def grid():
    multiprocessing.set_forkserver_preload(["fedapp.runtime.node.messages"])
    made = WorkerGrid(settings(), Resources(4, 2, 0.0), CLIENTAPP)
    yield made
    kill_workers()


def question(node: int, kind: str = "query") -> Message:
    return Message(RecordDict(), dst_node_id=node, message_type=kind)


def test_nodes_share_the_workers_and_every_one_answers_for_itself(grid):
    asked = [question(node) for node in grid.get_node_ids()]
    replies = grid.send_and_receive(asked, timeout=60)
    said = {r.metadata.src_node_id: r.content.config_records["identity"] for r in replies}
    assert {node: who["partition-id"] for node, who in said.items()} == {
        100: 0, 101: 1, 102: 2, 103: 3
    }  # fmt: skip
    assert all(who["hosts-any"] for who in said.values())
    assert grid.worker_of[100] is grid.worker_of[102] is not grid.worker_of[101]


def test_an_exception_in_a_handler_is_an_error_reply_and_the_worker_goes_on(grid):
    process = grid.worker_of[101].process
    (reply,) = grid.send_and_receive([question(101, "train")], timeout=60)
    assert reply.has_error()
    assert "KeyError" in reply.error.reason
    (reply,) = grid.send_and_receive([question(101)], timeout=60)
    assert not reply.has_error()
    assert grid.worker_of[101].process is process


def test_a_worker_that_is_lost_is_an_error_reply_and_another_one_starts(grid):
    lost = grid.worker_of[100].process
    os.kill(lost.pid, signal.SIGSTOP)  # so that it cannot have answered before it is killed
    ids = grid.push_messages([question(100)])
    assert grid.pull_messages(ids) == []
    os.kill(lost.pid, signal.SIGKILL)
    (reply,) = answered(grid, ids)
    assert reply.has_error()
    assert reply.error.reason == "its worker process ended with exit code -9"
    assert reply.metadata.src_node_id == 100
    (reply,) = grid.send_and_receive([question(100)], timeout=60)
    assert not reply.has_error()


@pytest.mark.parametrize("changes", ["model='mobilenet'", "model='resnet10'", "method='feddor'"])
def test_what_a_model_needs_is_imported_before_workers_are_forked_and_cuda_is_not_asked(changes):
    """A process cannot use CUDA if the one that it was forked from has."""
    code = f"""
import sys
import torch
from in_process import settings
torch._C._cuda_getDeviceCount = torch._C._cuda_init = lambda: sys.exit("CUDA was asked")
import fedapp.engines.simulation as simulation
import fedapp.engines.workers as workers
simulation.fork_template = lambda _: print("torchvision" in sys.modules)
simulation.watch_parent = workers.run_on_workers = lambda *_: None
simulation.simulate(settings({changes}), simulation.Resources(), "workers", "", "")
from fedapp.runtime.process.context import ProcessContext
from fedapp.config.resolve import parse_config
ProcessContext(parse_config(settings(device="cpu", {changes})))
print("torchvision" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=TESTS
    )
    needed = str("mobilenet" not in changes)
    assert done.stdout.split()[-2:] == [needed, needed]


def test_a_message_that_has_expired_is_not_worked_off(grid):
    late = question(103)
    late.metadata.ttl = -1.0
    (late_id,) = grid.push_messages([late])
    (reply,) = grid.send_and_receive([question(103)], timeout=60)
    assert not reply.has_error()
    assert grid.pull_messages([late_id]) == []
    assert late_id not in grid.waiting


def test_the_server_takes_few_replies_at_a_time_and_all_in_the_end(grid, monkeypatch):
    monkeypatch.setattr(workers, "AT_ONCE", 1)
    ids = grid.push_messages([question(100), question(101)])
    found = []
    while len(found) < 2:
        found += grid.pull_messages(ids)
        assert len(grid.replies) <= 1
    assert {reply.metadata.src_node_id for reply in found} == {100, 101}
    assert not set(ids) & grid.awaited.keys()


def test_a_reply_is_kept_that_comes_after_the_host_has_slept(grid, monkeypatch):
    ids = grid.push_messages([question(102)])
    later = time.time() + 7 * 86400
    monkeypatch.setattr(time, "time", lambda: later)
    (reply,) = answered(grid, ids)
    assert not reply.has_error()


@pytest.mark.parametrize(
    ("visible", "share", "seen"),
    [
        ("4,7", 0.5, ["4", "4", "7", "7"]),
        ("4,7", 0.0, [None] * 4),
        ("", 0.5, [None] * 4),
        ("0,1,2,3,4", 1.0, ["0", "1", "2", "3"]),
    ],
)
def test_workers_share_the_gpus_evenly(monkeypatch, visible, share, seen):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    resources = Resources(4, 4, share)
    assert [visible_gpu(worker, 4, resources) for worker in range(4)] == seen


@pytest.mark.parametrize(("nodes", "seen"), [(1, ["4"]), (2, ["4", "7"]), (3, ["4", "4", "7"])])
def test_with_few_nodes_the_workers_that_there_are_share_all_gpus(monkeypatch, nodes, seen):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    given = []
    monkeypatch.setattr(workers, "Worker", lambda app, cpus, gpu: given.append(gpu))
    WorkerGrid(settings(), Resources(workers=8, nodes=nodes, gpus=0.25), "app")
    assert given == seen


def answered(grid: WorkerGrid, ids: list[str]) -> list[Message]:
    return wait_until(lambda: grid.pull_messages(ids), 60, "reply")


def test_the_template_is_a_fork_of_its_caller_without_its_files_and_handlers(tmp_path):
    """It shares what the caller has imported; a pipe of the caller's is not kept open by it."""
    (tmp_path / "imported.py").write_text("""
import multiprocessing, signal
changed = False
def tell(connection):
    own = multiprocessing.get_context("forkserver").Process(target=int)
    own.start()
    own.join()
    default = signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    connection.send((changed, default, own.exitcode))
""")
    code = """
import os, signal
import imported
from fedapp.engines.worker_template import fork_template, kill_workers, worker_context
imported.changed = True
signal.signal(signal.SIGTERM, lambda *_: None)
reading, writing = os.pipe()
fork_template(os.environ["SOCKETS"])
ours, theirs = worker_context().Pipe()
process = worker_context().Process(target=imported.tell, args=(theirs,))
process.start()
os.close(writing)
print(*ours.recv(), os.read(reading, 1))
process.join()
print(process.exitcode)
kill_workers()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60,
        env={
            **os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "SOCKETS": str(tmp_path)
        },
    )  # fmt: skip
    assert (done.stdout.split(), done.stderr) == (["True", "True", "0", "b''", "0"], "")
    assert list(tmp_path.glob("listener-*")), "its socket is in that folder"
