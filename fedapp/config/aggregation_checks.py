"""Checks of how the server combines the clients' models, and in which form they are sent.

Robust rules, differential privacy, secure aggregation and rounded updates; each error is one
sentence.
"""

from clients.attacks import LABELS
from fedapp.config.privacy import check_privacy
from fedapp.config.run_config import RunConfig
from fedapp.core.errors import UserError
from fedapp.core.rng import cohort_size
from fedapp.methods.row import Method
from fedapp.models.backbones import BACKBONES
from fedapp.models.model import ALL_BUT_NORMS
from strategies.fedavg import FedAvg
from strategies.fedavgm import FedAvgM
from strategies.fednova import FedNova
from strategies.fedopt import FedOpt
from strategies.rounds.private import largest_noise
from strategies.rounds.quantised import WHOLE
from strategies.rounds.robust import Rule
from strategies.secure.messages import FEWEST

_FINE = 8  # bits of a value that rounding changes little in a single update, too


def check_aggregation(config: RunConfig, row: Method) -> None:
    """Raise UserError if the method or the cohort does not allow a robust or private mean."""
    _check_secure(config, row)
    if not config.dp_clip:
        for key, value in (("dp-epsilon", config.dp_epsilon), ("dp-noise", config.dp_noise)):
            if value:
                raise UserError(
                    f"{key} is {value:g} but dp-clip is 0: noise protects only updates of "
                    "a bounded norm, so set dp-clip too"
                )
        if config.aggregation == "mean":
            return
    rule = f"aggregation '{config.aggregation}'" if not config.dp_clip else "dp-clip"
    if row.server.kind not in (FedAvg, FedAvgM, FedOpt) or row.exchange.sends == "nothing":
        raise UserError(
            f"{rule} works with methods whose server just averages models, and method "
            f"'{config.method}' does more than that ({row.server.kind.__name__})"
        )
    if config.dp_clip and config.weights != "uniform":
        raise UserError(
            "dp-clip bounds what one client can change only if all count the same: "
            "set weights to 'uniform'"
        )
    sends_norms = row.exchange.sends != ALL_BUT_NORMS and BACKBONES[config.model].has_batch_norm
    if config.dp_clip and config.bn == "running" and sends_norms:
        raise UserError(
            "dp-clip shortens updates and adds noise to them, which BatchNorm's running averages "
            "do not bear (a variance may become negative): set bn to 'batch' or 'group'"
        )
    check_privacy(config)
    _check_rule(config)


def check_upload_bits(config: RunConfig, row: Method) -> None:
    """Raise UserError if the clients' updates cannot be rounded, or nothing would get smaller."""
    if config.upload_bits == WHOLE:
        return
    if not row.averages_models:
        raise UserError(
            f"run-config key 'upload-bits' is {config.upload_bits}, but only updates of models "
            f"that the server just averages can be rounded, and method '{config.method}' sends or "
            f"does something else ({row.server.kind.__name__}): set it to {WHOLE}"
        )
    if config.secure_aggregation != "off":
        raise UserError(
            f"run-config key 'upload-bits' is {config.upload_bits}, but with secure-aggregation "
            f"nodes send masked sums of 64 bits per value: set it to {WHOLE}"
        )
    other = "dp-clip" if config.dp_clip else f"aggregation '{config.aggregation}'"
    if (config.dp_clip or config.aggregation != "mean") and config.upload_bits < _FINE:
        raise UserError(
            f"run-config key 'upload-bits' is {config.upload_bits}, but only the mean of many "
            f"updates is right with so few bits, not what {other} makes of each of them: set it to "
            f"{_FINE} or {WHOLE}"
        )


def check_attack(config: RunConfig, row: Method) -> None:
    """Raise UserError if all clients would be malicious, or there is no update to change."""
    if not config.attackers:
        return
    if config.attackers >= config.training_clients:
        raise UserError(
            f"run-config key 'attackers' is {config.attackers} but must be less than num-clients "
            f"- new-clients ({config.training_clients})"
        )
    if config.attack == LABELS:
        return
    if row.exchange.sends == "nothing" or issubclass(row.server.kind, FedNova):
        raise UserError(
            f"run-config key 'attack' is '{config.attack}', which changes models that a server "
            f"averages, and that of method '{config.method}' averages none: set it to '{LABELS}'"
        )
    if config.secure_aggregation != "off":
        raise UserError(
            f"run-config key 'attack' is '{config.attack}', but who knows what all but one client "
            "send can read that client's update in the sum that secure-aggregation opens: set "
            f"attack to '{LABELS}', or secure-aggregation to 'off'"
        )


def _check_secure(config: RunConfig, row: Method) -> None:
    """Raise UserError if secure aggregation would hide what the server needs, or nothing."""
    if config.secure_aggregation == "off":
        return
    if config.aggregation != "mean":
        raise UserError(
            f"aggregation '{config.aggregation}' needs every client's own model, which "
            "secure-aggregation hides: choose one"
        )
    cohort = cohort_size(config.training_clients, config.participation)
    deviation, most = float(config.dp_noise) * config.dp_clip, largest_noise(cohort)
    if deviation > most:
        raise UserError(
            f"dp-noise * dp-clip is {deviation:g}, but the masked sums of {cohort} clients hold "
            f"noise of at most {most:g}: set a smaller dp-clip, or sample more clients"
        )
    if cohort < FEWEST:
        raise UserError(
            f"secure-aggregation needs at least {FEWEST} clients per round, but {cohort} are "
            "sampled: raise participation"
        )
    if not row.server.kind.sums_only or row.exchange.sends == "nothing":
        raise UserError(
            f"secure-aggregation hides all but sums, and the server of method '{config.method}' "
            f"needs more ({row.server.kind.__name__}); set it to 'off'"
        )


def _check_rule(config: RunConfig) -> None:
    """Raise UserError if a robust rule would protect against nobody."""
    rule = Rule(config.aggregation, config.robust_malicious, config.robust_trim)
    if rule.name == "multi-krum" and not rule.malicious:
        raise UserError(
            f"{rule} averages all models: set robust-malicious to the number of clients that may "
            "be malicious"
        )
    cohort = cohort_size(config.training_clients, config.participation)
    if cohort < rule.fewest:
        raise UserError(
            f"{rule} needs at least {rule.fewest} clients per round, but {cohort} are sampled"
        )
