"""Flower apps, by name, with a run configuration that Flower does not pass itself.

An app is imported when it is called, because Ray's workers and forked processes import it
themselves.
"""

import logging
import os
import threading
from collections.abc import Mapping
from pkgutil import resolve_name
from typing import Any

from fedapp.core.errors import UserError
from fedapp.core.log import configure
from fedapp.engines.resources import node_config

log = logging.getLogger(__name__)


class ConfiguredServerApp:
    """A ServerApp, by name, with a run configuration.

    Attributes:
        completed: whether it succeeded.
        running: whether it has begun and not ended.
    """

    def __init__(self, reference: str, run_config: Mapping[str, Any]) -> None:
        """Take the app's name, as module:name."""
        self.reference = reference
        self.run_config = dict(run_config)
        self.completed = False
        self.running = False

    def app(self) -> Any:
        """Return the ServerApp for Flower."""
        from flwr.serverapp import ServerApp  # takes a second

        app = ServerApp()
        app.main()(self.main)
        return app

    def main(self, grid: Any, context: Any) -> None:
        """Run the named app; log a `UserError` as one sentence."""
        context.run_config = self.run_config
        configure()
        self.running = True
        try:
            resolve_name(self.reference)(grid, context)
        except UserError as error:
            log.error(error)
        except KeyboardInterrupt:
            if threading.current_thread() is threading.main_thread():
                raise  # in another one nobody waits for it, and Flower would log a traceback
        else:
            self.completed = True
        finally:
            self.running = False


class ConfiguredClientApp:
    """A ClientApp, by name, that adds a run configuration to every message's context."""

    def __init__(self, reference: str, run_config: Mapping[str, Any]) -> None:
        """Take the app's name, as module:name: Ray's workers import it themselves."""
        self.reference = reference
        self.run_config = dict(run_config)
        own = {name: value for name, value in os.environ.items() if name.startswith("FEDAPP_")}
        self.environment = own  # which the workers of a Ray cluster do not inherit

    def __call__(self, message: Any, context: Any) -> Any:
        """Let the app answer a message; store its node's state in `context`."""
        from flwr.app import Context  # takes a second

        for name, value in self.environment.items():
            os.environ.setdefault(name, value)
        config = {**context.node_config, **node_config(self.run_config)}
        app_context = Context(
            run_id=context.run_id, node_id=context.node_id, node_config=config,
            state=context.state, run_config=dict(self.run_config),
        )  # fmt: skip
        reply = resolve_name(self.reference)(message, app_context)
        context.state = app_context.state
        return reply
