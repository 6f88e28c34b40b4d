"""The warm worker: it answers a SuperNode's messages and keeps model, data and CUDA loaded.

`warm.py` starts it with a listening socket and the id of a parent process. The worker answers one
message at a time with the handlers of `runtime/node/messages.py`. It ends with the parent process,
also in the middle of a training, or after half an hour without messages. It finishes a training
whose sender has ended, and drops the answer.
"""

import logging
import os
import select
import socket
import sys
import traceback
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

from flwr.app import Context, Message, MessageType

from fedapp.core.errors import UserError
from fedapp.core.log import configure
from fedapp.engines.deployment.warm import ANSWER, FAILURE, GONE, MISTAKE
from fedapp.engines.subprocesses import call_after

log = logging.getLogger("fedapp.engines.deployment.warm_worker")  # run as __main__
IDLE_SECONDS = 1800.0


def serve(listener: socket.socket, parent: int, idle: float = IDLE_SECONDS) -> None:
    """Answer messages until the parent process ends or `idle` seconds pass without a message."""
    path, inode = _name_of(listener)
    try:
        watched = [listener.fileno(), *_end_of(parent)]
        while True:
            ready, _, _ = select.select(watched, [], [], idle)
            if ready != [listener.fileno()]:
                return
            with Connection(listener.accept()[0].detach()) as connection:
                try:
                    _answer(connection)
                except (OSError, EOFError) as error:
                    log.warning(
                        "warm worker: the answer was not delivered (%s)", str(error) or GONE
                    )
    except ProcessLookupError:
        return  # the parent has already ended
    finally:
        _remove_socket(path, inode)


def _remove_socket(path: Path, inode: int) -> None:
    """Remove the socket, so that no new message finds it, but not a newer worker's socket.

    The lock file stays: a waiting process and later ones must lock the same file.
    """
    if path.exists() and path.stat().st_ino == inode:
        path.unlink()


def _leave(path: Path, inode: int) -> None:
    _remove_socket(path, inode)
    os._exit(0)


def _end_with(parent: int, listener: socket.socket) -> None:
    """Let a thread end this process with its parent, also during a training.

    A restarted SuperNode has another worker, which needs the client's lock and the GPU's memory.
    """
    with suppress(ProcessLookupError):  # the parent has already ended, as `serve` finds out
        if ends := _end_of(parent):
            name = _name_of(listener)
            call_after(partial(select.select, ends, [], []), partial(_leave, *name))


def _answer(connection: Connection) -> None:
    from flwr.common.serde import context_from_proto, context_to_proto, message_from_proto
    from flwr.proto.message_pb2 import Context as ProtoContext
    from flwr.proto.message_pb2 import Message as ProtoMessage

    message = message_from_proto(ProtoMessage.FromString(connection.recv_bytes()))
    context = context_from_proto(ProtoContext.FromString(connection.recv_bytes()))
    kind, payload = _handle(message, context)
    connection.send_bytes(kind)
    connection.send_bytes(payload)
    connection.send_bytes(context_to_proto(context).SerializeToString())


def _handle(message: Message, context: Context) -> tuple[bytes, bytes]:
    """Return the kind of answer and its bytes."""
    from flwr.common.serde import message_to_proto

    from fedapp.runtime.node.messages import app
    from fedapp.runtime.process.context import close_process
    from fedapp.runtime.process.run_data import clear_data_cache

    if message.metadata.message_type == MessageType.QUERY:
        close_process()  # a new run begins, and the host's images may have changed
        clear_data_cache()
    try:
        return ANSWER, message_to_proto(app(message, context)).SerializeToString()
    except UserError as error:
        return MISTAKE, str(error).encode()
    except Exception:
        return FAILURE, traceback.format_exc().encode()


def _name_of(listener: socket.socket) -> tuple[Path, int]:
    path = Path(listener.getsockname())
    return path, path.stat().st_ino


def _end_of(parent: int) -> list[int]:
    """Return a descriptor that becomes readable when a process ends, [] if unsupported.

    Raises ProcessLookupError if the process has ended.
    """
    return [os.pidfd_open(parent)] if hasattr(os, "pidfd_open") else []


def main() -> None:
    """Serve the socket and the parent given on the command line."""
    configure()
    descriptor, parent = int(sys.argv[1]), int(sys.argv[2])
    with socket.socket(fileno=descriptor) as listener:
        _end_with(parent, listener)
        serve(listener, parent)


if __name__ == "__main__":
    main()
