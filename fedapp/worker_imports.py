"""What the process that workers are forked from imports: the app, and what its models need."""

import json
import os
from contextlib import suppress

import fedapp.client_app  # noqa: F401
from fedapp.config import RunConfig
from fedapp.models import import_networks
from fedapp.worker_template import RUN_CONFIG

with suppress(Exception):  # the server says what is wrong with a configuration
    import_networks(RunConfig.parse(json.loads(os.environ[RUN_CONFIG])))
