"""The warm worker: the same answers, private, one per node, and gone when it should be."""

import multiprocessing.connection
import os
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from in_process import settings
from PIL import Image

from fedapp.client_app import app
from fedapp.core.errors import UserError
from fedapp.core.extension_files import VARIABLE
from fedapp.engines.deployment import warm, warm_worker
from strategies.secure.messages import KEYS, SECURE
from strategies.secure.primitives import public_key

TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1


@pytest.fixture(autouse=True)
def folder(monkeypatch):
    """A folder for sockets, with a name short enough for one."""
    with tempfile.TemporaryDirectory(prefix="fedapp-") as name:
        monkeypatch.setattr(tempfile, "gettempdir", lambda: name)
        yield Path(name)


def question(**node_config) -> tuple[Message, Context]:
    message = Message(RecordDict(), dst_node_id=7, message_type=MessageType.QUERY)
    message.metadata.__dict__["_message_id"] = "asked"
    place = {"partition-id": 0, "num-partitions": 2, "worker": "warm", **node_config}
    return message, Context(1, 7, place, RecordDict(), settings(num_clients=10))


@pytest.fixture
def in_thread(monkeypatch):
    """Let the worker be a thread of this process, which ends when idle."""
    threads = []

    def start(command, pass_fds, **options):
        assert command[1:4] == ["-P", "-m", "fedapp.engines.deployment.warm_worker"]
        listener = socket.socket(fileno=os.dup(pass_fds[0]))
        thread = threading.Thread(
            target=warm_worker.serve, args=(listener, int(command[5])), kwargs={"idle": 0.5}
        )
        threads.append(thread)
        thread.start()

    monkeypatch.setattr(subprocess, "Popen", start)
    yield threads
    for thread in threads:
        thread.join()


def identity(reply: Message) -> dict:
    return dict(reply.content.config_records["identity"])


def test_a_changed_extension_file_gets_a_new_worker(folder, monkeypatch):
    path = folder / "own.py"
    monkeypatch.setenv(VARIABLE, str(path))
    sockets = set()
    for text in ("A = 1", "A = 2", "A = 2"):
        path.write_text(text)
        sockets.add(warm._socket_path(7))
    assert len(sockets) == 2


def test_it_answers_what_the_plain_process_answers(in_thread):
    plain = identity(app(*question(worker="plain")))
    assert plain["clients"] == [0, 2, 4, 6, 8]
    reply = app(*question())
    assert identity(reply) == plain
    assert reply.metadata.reply_to_message_id == "asked"
    app(*question())
    assert len(in_thread) == 1, "one worker answers all messages of a node"


def test_a_run_starts_with_the_images_that_are_there_then(in_thread, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDAPP_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "train" / "cat"
    folder.mkdir(parents=True)
    run = settings(
        dataset="images", partition="own", classes="cat dog", num_clients=1, participation=1.0
    )
    held = []
    for number in range(3):
        Image.new("RGB", (32, 32), (number, 0, 0)).save(folder / f"{number}.png")
        message, context = question(**{"num-partitions": 1, "data-dir": str(tmp_path)})
        held += identity(app(message, Context(1, 7, context.node_config, RecordDict(), run)))[
            "examples"
        ]
    assert held == [1, 2, 3]


def test_only_this_user_can_reach_it(in_thread, folder):
    app(*question())
    (private,) = folder.iterdir()
    modes = {p.suffix: stat.S_IMODE(p.stat().st_mode) for p in (private, *private.iterdir())}
    assert modes[""] == 0o700
    assert modes[".sock"] == 0o600


def test_a_folder_that_others_can_enter_is_not_used(in_thread, folder, capfd):
    private = folder / f"fedapp-{os.getuid()}"
    private.mkdir()
    private.chmod(0o777)
    assert identity(app(*question()))["protocol"]
    assert not in_thread
    assert "not a private folder" in capfd.readouterr().out


def test_it_leaves_no_socket_when_it_is_idle(in_thread, folder):
    """The lock file stays: were it made anew, two processes could both hold "the" lock."""
    app(*question())
    (lock,) = folder.glob("*/*.lock")
    number = lock.stat().st_ino
    in_thread[0].join()
    assert list(lock.parent.iterdir()) == [lock]
    app(*question())
    assert len(in_thread) == 2
    assert lock.stat().st_ino == number


def test_a_users_mistake_stays_one_sentence(in_thread):
    message, context = question()
    unknown = Context(1, 7, context.node_config, RecordDict(), {"methd": "fedavg"})
    message.metadata.__dict__["_message_type"] = "evaluate"
    with pytest.raises(UserError, match="run-config key 'methd' does not exist"):
        app(message, unknown)


def test_a_failure_comes_back_with_its_traceback(in_thread):
    message, context = question()
    message.metadata.__dict__["_message_type"] = "train"
    with pytest.raises(RuntimeError, match="KeyError"):
        app(message, context)


def test_without_a_worker_the_message_is_answered_here(monkeypatch, capfd):
    def broken(*arguments, **options):
        raise OSError("no more processes")

    monkeypatch.setattr(subprocess, "Popen", broken)
    assert identity(app(*question()))["clients"] == [0, 2, 4, 6, 8]
    assert "no more processes" in capfd.readouterr().out


def test_a_worker_that_dies_is_replaced_by_the_plain_path(monkeypatch, capfd):
    """Its process ends without taking the connection that waits in the socket."""
    monkeypatch.setattr(subprocess, "Popen", lambda *arguments, **options: None)
    assert identity(app(*question()))["clients"] == [0, 2, 4, 6, 8]
    assert "answering without it" in capfd.readouterr().out


def test_an_unknown_kind_of_worker_is_one_sentence():
    with pytest.raises(UserError, match="'worker' is 'hot' but must be plain or warm"):
        app(*question(worker="hot"))


def test_the_process_ends_with_its_parent(folder):
    parent = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    path = folder / "worker.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        number = listener.fileno()
        command = [
            sys.executable,
            "-m",
            "fedapp.engines.deployment.warm_worker",
            str(number),
            str(parent.pid),
        ]
        worker = subprocess.Popen(command, pass_fds=[number], cwd=Path(__file__).parents[3])
    parent.communicate(b"\n")
    started = time.monotonic()
    assert worker.wait(60) == 0
    assert not path.exists()
    assert time.monotonic() - started < 55


def test_one_who_goes_away_costs_the_worker_nothing(in_thread, folder, capfd):
    app(*question())
    (path,) = folder.glob("*/*.sock")
    with socket.socket(socket.AF_UNIX) as rude:
        rude.connect(str(path))
    assert identity(app(*question()))["clients"] == [0, 2, 4, 6, 8]
    assert len(in_thread) == 1
    assert "the answer was not delivered (it closed the connection)" in capfd.readouterr().out


def test_messages_of_any_size_arrive_whole_and_nothing_is_unpickled(in_thread, monkeypatch):
    def refuse(*arguments, **options):
        raise AssertionError("unpickled")

    monkeypatch.setattr(multiprocessing.connection._ForkingPickler, "loads", refuse)
    message, context = question()
    context.state["large"] = ConfigRecord({"bytes": os.urandom(3_000_000)})
    assert identity(app(message, context))["clients"] == [0, 2, 4, 6, 8]
    assert len(in_thread) == 1


def test_what_a_handler_keeps_in_the_context_comes_back(in_thread):
    message, context = question()
    message.metadata.__dict__["_message_type"] = f"query.{KEYS}"
    message.content[SECURE] = ConfigRecord({"session": b"s" * 16, "party": 4})
    reply = app(message, context)
    assert len(in_thread) == 1
    kept = context.state.config_records[SECURE]
    assert kept["party"] == 4
    assert public_key(kept["masking"]) == reply.content.config_records[SECURE]["masking"]
