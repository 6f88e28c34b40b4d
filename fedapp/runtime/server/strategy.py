"""Builds the Flower strategy of a configuration, and samples the clients of a round."""

from collections.abc import Callable
from typing import Any

from fedapp.config.run_config import RunConfig
from fedapp.core.arrays import Arrays
from fedapp.core.errors import UserError
from fedapp.core.rng import sample_clients, sample_secretly
from fedapp.results.checkpoint import Checkpoint
from fedapp.runtime.process.context import ProcessContext
from strategies.form import misfit
from strategies.rounds.base import ClientStrategy
from strategies.rounds.federation import Federation
from strategies.rounds.robust import Rule


def build_strategy(
    config: RunConfig, process: ProcessContext, federation: Federation, state_key: str = ""
) -> ClientStrategy:
    """Build the method's strategy; its clients store their states under `state_key`."""
    values = config.flat()
    return process.method.server.kind(
        federation,
        cohort=_cohorts(config),
        lr=config.lr_at,
        trained=process.codec.trained,
        weights=config.weights,
        min_replies=config.min_replies,
        tolerate_failures=config.tolerate_failures,
        client_evaluation_every=config.client_evaluation_every,
        state_key=state_key if process.keeps else "",
        files=process.files_text,
        **_rule(config),
        **({"codec": process.codec} if process.codec.rounds else {}),
        **{name: values[key] for name, key in process.method.server.options.items()},
        **process.method.server.parts(process.setup),
    )


def restore(strategy: ClientStrategy, saved: Checkpoint, model: Arrays, source: object) -> None:
    """Let a strategy continue from a checkpoint of this model; `source` is its name in errors.

    Raises:
        UserError: it is the checkpoint of another model, or a part is missing; or the strategy
            cannot continue.
    """
    remedy = "remove it, and the run resumes from an earlier one"
    if difference := misfit(saved.arrays, model):
        raise UserError(f"{source} does not contain the model of this run: {difference}; {remedy}")
    try:
        strategy.restore(saved.strategy)
    except NotImplementedError as error:
        raise UserError(f"{source} cannot be continued: {error}") from None
    except KeyError as missing:
        raise UserError(f"{source} lacks {missing}; {remedy}") from None


def _rule(config: RunConfig) -> dict[str, Any]:
    """Return the arguments for a robust, private or masked mean; empty if none is configured."""
    rule = Rule(
        config.aggregation, config.robust_malicious, config.robust_trim,
        config.dp_clip, float(config.dp_noise),
    )  # fmt: skip
    secure = config.secure_aggregation != "off"
    return ({"rule": rule} if rule.needed else {}) | (
        {"secure_threshold": config.secure_threshold, "configuration": config.full_fingerprint()}
        if secure
        else {}
    )


def _cohorts(config: RunConfig) -> Callable[[int], list[int]]:
    """Return the sampling of clients: from the seed, or secret where sampling adds privacy.

    Every node knows the run's seed. Whoever knows that a client took part in a round learns more
    about it from the noisy mean than the privacy budget counts. With secure aggregation the nodes
    of a round know each other, and the budget counts no sampling.
    """
    clients, share = config.training_clients, config.participation
    if float(config.dp_noise) and config.secure_aggregation == "off":
        return lambda server_round: sample_secretly(clients, share)
    return lambda server_round: sample_clients(config.seed, server_round, clients, share)
