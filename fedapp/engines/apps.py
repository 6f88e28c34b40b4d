"""Flower's apps, by name, with a run configuration that Flower does not hand over itself.

They are imported when they are called: Ray's workers, and processes that fork, import them anew.
"""

import logging
from collections.abc import Mapping
from pkgutil import resolve_name
from typing import Any

from fedapp.core.errors import UserError
from fedapp.core.log import configure
from fedapp.engines.resources import node_config

log = logging.getLogger(__name__)


class ConfiguredServerApp:
    """A ServerApp, by name, with a run configuration; notes whether it came to its end."""

    def __init__(self, reference: str, run_config: Mapping[str, Any]) -> None:
        """Take the app's name, as module:name."""
        self.reference = reference
        self.run_config = dict(run_config)
        self.completed = False

    def app(self) -> Any:
        """Return the ServerApp that Flower is to run."""
        from flwr.serverapp import ServerApp  # takes a second

        app = ServerApp()
        app.main()(self.main)
        return app

    def main(self, grid: Any, context: Any) -> None:
        """Run the named app; a user's mistake becomes one sentence."""
        context.run_config = self.run_config
        configure()
        try:
            resolve_name(self.reference)(grid, context)
        except UserError as mistake:
            log.error(mistake)
        else:
            self.completed = True


class ConfiguredClientApp:
    """A ClientApp, by name, whose messages come with a run configuration."""

    def __init__(self, reference: str, run_config: Mapping[str, Any]) -> None:
        """Take the app's name, as module:name: Ray's workers import it themselves."""
        self.reference = reference
        self.run_config = dict(run_config)

    def __call__(self, message: Any, context: Any) -> Any:
        """Let the app answer a message; its node's state is kept in `context`."""
        from flwr.app import Context  # takes a second

        place = {**context.node_config, **node_config(self.run_config)}
        own = Context(
            run_id=context.run_id, node_id=context.node_id, node_config=place,
            state=context.state, run_config=dict(self.run_config),
        )  # fmt: skip
        reply = resolve_name(self.reference)(message, own)
        context.state = own.state
        return reply
