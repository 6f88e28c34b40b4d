"""The client side of the warm worker: find it, start it and send it messages.

There is one worker per SuperNode and version of the app, reached by a private Unix socket. The
first message without a worker binds the socket and passes it to a new process, so no process waits
for a file to appear. Messages queue in the socket until torch is imported. The folder has mode 0700
and belongs to this user. The frames contain Flower's own protobuf messages, so nothing is
unpickled.
"""

import fcntl
import hashlib
import os
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

from flwr.app import Context, Message

from fedapp.core.errors import UserError
from fedapp.core.extension_files import read_files

ANSWER, MISTAKE, FAILURE = b"a", b"m", b"f"  # kinds of a worker's frame
GONE = "it closed the connection"  # the meaning of an EOFError without message


class WorkerLost(Exception):  # noqa: N818 - not an error of the run: the caller answers
    """The worker is not reachable, or ended before its answer."""


def ask_worker(message: Message, context: Context) -> Message:
    """Let the node's worker answer a message, starting the worker if there is none.

    The context's state becomes what the worker's handler has made of it.

    Raises:
        UserError: the handler's `UserError`.
        RuntimeError: the handler failed; the message is its traceback.
        WorkerLost: there is no answer, and the caller may answer the message itself.
    """
    try:
        from flwr.common.serde import (
            context_from_proto,
            context_to_proto,
            message_from_proto,
            message_to_proto,
        )
        from flwr.proto.message_pb2 import Context as ProtoContext
        from flwr.proto.message_pb2 import Message as ProtoMessage

        with _connection(_socket_path(context.node_id)) as connection:
            connection.send_bytes(message_to_proto(message).SerializeToString())
            connection.send_bytes(context_to_proto(context).SerializeToString())
            kind, payload = connection.recv_bytes(), connection.recv_bytes()
            after = ProtoContext.FromString(connection.recv_bytes())
            context.state = context_from_proto(after).state
    except (OSError, EOFError, ImportError, ValueError) as error:
        raise WorkerLost(str(error) or GONE) from error
    if kind == MISTAKE:
        raise UserError(payload.decode())
    if kind == FAILURE:
        raise RuntimeError(payload.decode())
    return message_from_proto(ProtoMessage.FromString(payload))


def _socket_path(node_id: int) -> Path:
    """Return the path of this SuperNode's worker socket for this version of the app.

    A restarted SuperNode has another parent process here, and gets another worker.
    """
    folder = Path(tempfile.gettempdir()) / f"fedapp-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PermissionError(f"{folder} is not a private folder of this user")
    home = os.environ.get("FLWR_HOME", "")
    files = ", ".join(map(str, read_files()))  # a worker keeps the files that it has imported
    parts = (home, node_id, os.getppid(), _app_folder(), sys.executable, files)
    identity = "\n".join(map(str, parts))
    return folder / f"{hashlib.sha256(identity.encode()).hexdigest()[:24]}.sock"


def _app_folder() -> Path:
    return Path(__file__).resolve().parents[3]


@contextmanager
def _connection(path: Path) -> Iterator[Connection]:
    """Connect to the worker at `path`; at most one process at a time starts one."""
    with socket.socket(socket.AF_UNIX) as client:
        with path.with_name("start.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                client.connect(str(path))
            except (FileNotFoundError, ConnectionRefusedError):
                _start_worker(path)
                client.connect(str(path))
        with Connection(client.detach()) as connection:
            yield connection


def _start_worker(path: Path) -> None:
    """Bind the socket and start a worker that inherits it and ends with this process's parent.

    The parent of a message's process is Flower's SuperExec, which ends with its SuperNode.
    """
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        before = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(before)
        listener.listen()
        descriptor = listener.fileno()
        search = os.pathsep.join(filter(None, (str(_app_folder()), os.environ.get("PYTHONPATH"))))
        command = [
            sys.executable,
            "-P",  # not the code of the folder in which the SuperNode was started
            "-m",
            "fedapp.engines.deployment.warm_worker",
            str(descriptor),
            str(os.getppid()),
        ]
        subprocess.Popen(
            command, pass_fds=[descriptor], start_new_session=True, stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": search},
        )  # fmt: skip
