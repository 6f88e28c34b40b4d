"""Imports of the process from which workers are forked: the app, and its models' packages."""

import json
import os
from contextlib import suppress

import fedapp.runtime.client  # noqa: F401
from fedapp.config.resolve import parse_config
from fedapp.engines.worker_template import RUN_CONFIG
from fedapp.models.model import import_networks

with suppress(Exception):  # the server reports configuration errors
    _config = parse_config(json.loads(os.environ[RUN_CONFIG]))
    import_networks(_config.model, _config.model_group)
