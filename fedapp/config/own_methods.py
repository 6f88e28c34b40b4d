"""Checks of a method that a user adds: do the names in its row exist?

The rows of this project are checked by its tests. A user's row has none, and a wrong name in it
would end a run with a traceback, some of them in the middle of the training.
"""

import re
from collections.abc import Collection

from pydantic import BaseModel

from clients.training.objective import BASE_LOSSES, REGULARISERS
from fedapp.config.key_groups import kebab
from fedapp.config.run_keys import RunKeys
from fedapp.core.errors import UserError, unknown
from fedapp.core.keys import Key
from fedapp.methods.row import Method
from fedapp.methods.table import METHODS, method_keys

_OWN_KEY = re.compile(r"[a-z0-9]+(-[a-z0-9]+)+")


def check_method(row: Method) -> None:
    """Raise UserError for the first name in a method's row that does not exist or is taken."""
    _exists("loss", row.loss.base, BASE_LOSSES)
    if row.loss.regulariser is not None:
        _exists("regulariser", row.loss.regulariser, REGULARISERS)
    if row.settings_of:
        _exists("method", row.settings_of, METHODS)
    for name, key in row.keys.items():
        _check_key(name, key)
    try:
        keys = {*method_keys(), *map(kebab, RunKeys.model_fields)}
    except ValueError as error:
        raise UserError(str(error)) from None
    options = (row.head.options, row.client.options, row.server.options)
    for name in [*(key for option in options for key in option.values()), *row.defaults]:
        _exists("key", kebab(name), keys)


def _exists(what: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        raise unknown(what, name, known)


def _check_key(name: str, key: object) -> None:
    if not isinstance(key, Key):
        raise UserError(f"the key '{name}' is {key!r}, but must be a Key(type, default, meaning)")
    if not _OWN_KEY.fullmatch(name):
        raise UserError(f"the key '{name}' must be words with hyphens, as 'half-step'")
    field = name.replace("-", "_")
    if field in RunKeys.model_fields or hasattr(BaseModel, field):
        raise UserError(f"the key '{name}' exists; choose another name")
