"""The warm worker: a process that answers a SuperNode's messages and keeps model, data and CUDA.

`warm.py` starts it with a listening socket and the process whose end is also its own. It answers
one message at a time with the handlers of `client_app.py`, and ends when that process ends or when
nobody has asked for half an hour. A training that nobody waits for any more is finished, and its
answer dropped.
"""

import logging
import os
import select
import socket
import sys
import traceback
from multiprocessing.connection import Connection
from pathlib import Path

from flwr.app import Context, Message, MessageType

from fedapp.core.errors import UserError
from fedapp.core.log import configure
from fedapp.engines.deployment.warm import ANSWER, FAILURE, GONE, MISTAKE

log = logging.getLogger("fedapp.engines.deployment.warm_worker")  # run as __main__
IDLE_SECONDS = 1800.0


def serve(listener: socket.socket, parent: int, idle: float = IDLE_SECONDS) -> None:
    """Answer messages until the parent process ends or `idle` seconds pass without any."""
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
                    log.warning("warm worker: nobody took the answer (%s)", str(error) or GONE)
    except ProcessLookupError:
        return  # the parent had ended before it could be watched
    finally:
        # no new message may find the socket; another worker's, bound since, stays, and so does
        # the lock file: whoever waits for it must not hold another one than who comes next
        if path.exists() and path.stat().st_ino == inode:
            path.unlink()


def _answer(connection: Connection) -> None:
    from flwr.common.serde import context_from_proto, message_from_proto
    from flwr.proto.message_pb2 import Context as ProtoContext
    from flwr.proto.message_pb2 import Message as ProtoMessage

    message = message_from_proto(ProtoMessage.FromString(connection.recv_bytes()))
    context = context_from_proto(ProtoContext.FromString(connection.recv_bytes()))
    kind, payload = _handle(message, context)
    connection.send_bytes(kind)
    connection.send_bytes(payload)


def _handle(message: Message, context: Context) -> tuple[bytes, bytes]:
    """Return the kind of answer and its bytes."""
    from flwr.common.serde import message_to_proto

    from fedapp.runtime.client import app
    from fedapp.runtime.process import close_process
    from fedapp.runtime.run_data import forget_files

    if message.metadata.message_type == MessageType.QUERY:
        close_process()  # a run begins, and the host may have other images than at the last one
        forget_files()
    try:
        return ANSWER, message_to_proto(app(message, context)).SerializeToString()
    except UserError as mistake:
        return MISTAKE, str(mistake).encode()
    except Exception:
        return FAILURE, traceback.format_exc().encode()


def _name_of(listener: socket.socket) -> tuple[Path, int]:
    path = Path(listener.getsockname())
    return path, path.stat().st_ino


def _end_of(parent: int) -> list[int]:
    """Return a descriptor that becomes readable when a process ends, where the system has such.

    Raises ProcessLookupError if it has ended.
    """
    return [os.pidfd_open(parent)] if hasattr(os, "pidfd_open") else []


def main() -> None:
    """Serve the socket and the parent that the command line names."""
    configure()
    descriptor, parent = int(sys.argv[1]), int(sys.argv[2])
    with socket.socket(fileno=descriptor) as listener:
        serve(listener, parent)


if __name__ == "__main__":
    main()
