"""What the process that workers are forked from imports: the app, and what the run's models need.

torchvision takes as long to import as PyTorch, and every worker would do it for itself, beside the
others, when its first client needs a model of it.
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import fedapp.client_app  # noqa: F401
from fedapp.config import RunConfig
from fedapp.worker_template import RUN_CONFIG


def import_for(run_config: Mapping[str, Any]) -> None:
    """Import what the models of a run will; nothing for a configuration that cannot run."""
    with suppress(Exception):  # the server says what is wrong with it
        config = RunConfig.parse(run_config)
        if config.model_group or config.model.startswith("resnet"):
            import torchvision.models  # noqa: F401


import_for(json.loads(os.environ.get(RUN_CONFIG, "{}")))
