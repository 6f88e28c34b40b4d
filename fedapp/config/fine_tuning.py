"""The meaning of the finetune-* keys: epochs, learning rate, part and loss of fine-tuning.

The papers fine-tune with different protocols. A method takes the protocol of the paper that reports
its results, unless `finetune-protocol` names another one.
"""

from __future__ import annotations

from typing import Any

from clients.training.parts import ALL, BODY
from fedapp.config.run_config import RunConfig
from fedapp.core.errors import UserError
from fedapp.methods.fine_tuned import ALTERNATING, PROTOCOLS
from fedapp.methods.row import ADD, Method


def fine_tuning_settings(config: RunConfig, row: Method) -> dict[str, Any]:
    """Return what "auto" means for the finetune-* keys; the other keys are already resolved."""
    chosen: str = config.finetune_protocol
    name = row.fine_tuning.protocol if chosen == "auto" else chosen
    frozen = row.head.kind(config.flat()).frozen
    protocol = PROTOCOLS[name]
    settings: dict[str, Any] = {
        "finetune_protocol": name,
        "finetune_epochs": protocol.epochs(int(config.local_epochs)) if row.fine_tuned else 0,
        "finetune_lr": protocol.rate(float(config.lr), row.fine_tuning),
        "finetune_part": protocol.part or row.fine_tuning.part or (BODY if frozen else ALL),
        "finetune_loss": "own",
    }
    epochs = config.finetune_epochs
    if (settings["finetune_epochs"] if epochs == "auto" else epochs) == 0:
        del settings["finetune_lr"]  # unused; two equal runs would seem to differ in it
    return settings


def check_fine_tuning(config: RunConfig, row: Method) -> None:
    """Raise UserError if the clients of a method cannot fine-tune as configured."""
    if row.fine_tuned and not config.finetune_epochs:
        raise UserError(
            f"run-config key 'finetune-epochs' is 0 but method '{config.method}' fine-tunes; take "
            f"method '{row.settings_of}' to leave that out"
        )
    if config.finetune_epochs and not row.has_global_model:
        raise UserError(
            f"run-config key 'finetune-epochs' is {config.finetune_epochs} but the clients of "
            f"method '{config.method}' have models of their own already; leave it at 0"
        )
    if config.finetune_epochs and config.finetune_part == ALTERNATING:
        _check_turns(config, row)
    if config.finetune_loss in ("dr", "dr+") and not row.head.kind(config.flat()).frozen:
        raise UserError(
            f"run-config key 'finetune-loss' is '{config.finetune_loss}' but dot-regression needs "
            f"the fixed head that method '{config.method}' does not have; use 'own' or 'base'"
        )
    if config.finetune_loss in ("dr", "dr+") and config.finetune_part != BODY:
        raise UserError(
            f"run-config key 'finetune-loss' is '{config.finetune_loss}', which trains no head, but"
            f" 'finetune-part' is '{config.finetune_part}'; set that to '{BODY}'"
        )
    if config.finetune_loss == "base+fd" and (row.loss.combine, row.loss.weight) == (ADD, "beta"):
        raise UserError(
            f"run-config key 'finetune-loss' is 'base+fd', which is beta * loss + (1 - beta) * fd, "
            f"but in method '{config.method}' 'beta' is the weight of its own regulariser; use "
            "'own' or 'base'"
        )
    if config.finetune_loss in ("base+fd", "dr+") and float(config.beta) > 1:
        raise UserError(
            f"run-config key 'beta' is {config.beta} but finetune-loss '{config.finetune_loss}' is "
            "beta * loss + (1 - beta) * fd, so it must be between 0 and 1"
        )


def _check_turns(config: RunConfig, row: Method) -> None:
    if not row.fine_tuning.turns:
        raise UserError(
            f"run-config key 'finetune-part' is '{ALTERNATING}' (finetune-protocol "
            f"'{config.finetune_protocol}'), which is how FedETF fine-tunes; with method "
            f"'{config.method}' use 'body', 'head' or 'all'"
        )
    if not config.bottleneck:
        raise UserError(
            f"run-config key 'finetune-part' is '{ALTERNATING}': the head's rows and the layer "
            "before it in turn, but the model has no such layer; set 'bottleneck' to its number of "
            "features, such as 64"
        )
