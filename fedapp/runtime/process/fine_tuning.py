"""Fine-tuning of a run's clients: from configuration keys to local trainings."""

from dataclasses import replace

from clients.training.local_training import LocalSettings
from clients.training.model_slot import Tuning
from clients.training.objective import Objective
from clients.training.parts import ALL_BUT_ROWS, BOTTLENECK, ROWS
from fedapp.config.run_config import RunConfig
from fedapp.methods.fine_tuned import ALTERNATING
from fedapp.methods.row import Method

# The turns of FedETF's code: plain cross-entropy, and no momentum or weight decay on the rows.
TURN_EPOCHS, ROWS_LR, BOTTLENECK_LR = 3, 0.1, 0.05


def tuning_of(
    config: RunConfig, row: Method, objective: Objective, settings: LocalSettings
) -> tuple[Tuning, ...]:
    """Return the local trainings of fine-tuning in their order; empty without fine-tuning."""
    if not config.finetune_epochs:
        return ()
    turns = config.finetune_part == ALTERNATING
    whole = Tuning(
        _objective(config, row, objective),
        replace(settings, epochs=int(config.finetune_epochs)),
        float(config.finetune_lr),
        ALL_BUT_ROWS if turns else config.finetune_part,
    )
    return (whole, *(_turn(settings) * config.finetune_turns if turns else ()))


def _turn(settings: LocalSettings) -> tuple[Tuning, Tuning]:
    """Return one turn of FedETF's fine-tuning: the head's rows, then the bottleneck."""
    bottleneck = replace(settings, epochs=TURN_EPOCHS)
    rows = replace(bottleneck, momentum=0.0, weight_decay=0.0)
    plain = Objective("ce")
    return (
        Tuning(plain, rows, ROWS_LR, ROWS),
        Tuning(plain, bottleneck, BOTTLENECK_LR, BOTTLENECK),
    )


def _objective(config: RunConfig, row: Method, own: Objective) -> Objective:
    """Return the loss of fine-tuning, which never has a pull to the client's previous model."""
    beta, plain = float(config.beta), Objective(row.loss.base, options=own.options)
    distilled = replace(plain, regulariser="fd", base_weight=beta, reg_weight=1.0 - beta)
    losses = {
        "own": plain if own.needs_previous else own,
        "base": plain,
        "base+fd": distilled,
        "dr": replace(plain, base="dr"),
        "dr+": replace(distilled, base="dr"),
    }
    return losses[config.finetune_loss]
