"""What Flower starts for a message: the ClientApp itself, or a call to the warm worker beside it.

A SuperNode starts one Python process per message. Importing torch, reading the data and making a
CUDA context there costs seconds per round, so with node-config `worker="warm"` this module, which
does neither and hands the message to a process that stays (`warm.py`). Whatever goes wrong with
that process, the message is answered here instead, by the same handlers.
"""

import logging

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedapp.core.errors import UserError
from fedapp.core.log import configure

log = logging.getLogger(__name__)
WORKERS = ("plain", "warm")


class MessageApp(ClientApp):
    """A ClientApp that answers by `fedapp.runtime.client.app`, here or in the warm worker."""

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer one message; raises what the handlers raise."""
        configure()
        worker = context.node_config.get("worker", "plain")
        if worker not in WORKERS:
            raise UserError(f"node-config key 'worker' is {worker!r} but must be plain or warm")
        if worker == "warm":
            from fedapp.engines.deployment.warm import WorkerLost, ask_worker  # needs a Unix system

            try:
                return ask_worker(message, context)
            except WorkerLost as reason:
                log.warning("the warm worker is no help (%s): answering without it", reason)
        from fedapp.runtime.client import app as handlers  # imports torch

        return handlers(message, context)


app = MessageApp()
