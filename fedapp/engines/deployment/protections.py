"""What a run's configuration protects from whom, in sentences for `fedapp doctor`."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from fedapp.config.overrides import read_overrides
from fedapp.config.privacy import Budget
from fedapp.config.project import merge
from fedapp.config.resolve import parse_config
from fedapp.config.run_config import RunConfig
from fedapp.engines.deployment.doctor import Check


def protections_of(project: Path, texts: Sequence[str]) -> Iterator[Check]:
    """Yield the protections of a project's configuration with the `-c` arguments `texts`.

    Raises:
        UserError: the configuration is refused.
    """
    return protections(parse_config(merge(project, read_overrides(texts))))


def protections(config: RunConfig) -> Iterator[Check]:
    """Yield what is on and what is off; nothing of it is a failed check."""
    for name, found in (
        ("secure aggregation", _secure(config)),
        ("differential privacy", _privacy(config)),
        ("robust aggregation", _robust(config)),
    ):
        yield Check(name, True, found)


def _secure(config: RunConfig) -> str:
    if config.secure_aggregation == "off":
        return "off: the server sees every node's update (secure-aggregation)"
    share = round(100 * config.secure_threshold)
    return (
        f"on: the server sees sums of models only; {share} % of a round's nodes must stay to its "
        "end. Not hidden: numbers that clients report, and anything from a server that breaks the "
        "protocol, against which nodes need secure-peers (docs/security.md)"
    )


def _privacy(config: RunConfig) -> str:
    budget = Budget.of(config)
    if budget is not None:
        rounds = budget.affordable(config.num_rounds)
        limit = f" (limit {budget.limit:g})" if budget.limit else ""
        return (
            f"on: noise {budget.noise:g} at norm {config.dp_clip:g}; after {rounds} rounds epsilon "
            f"{budget.epsilon(rounds):.3g}{limit} at delta {budget.delta:g}{_whose(config)}"
        )
    if not config.dp_clip:
        return "off: models can tell about single clients (dp-clip, dp-epsilon)"
    if not float(config.dp_noise):
        return f"no noise: updates are cut to norm {config.dp_clip:g}, which hides nobody"
    return f"not counted: noise with aggregation '{config.aggregation}' has no proven budget"


def _whose(config: RunConfig) -> str:
    """Return who adds the noise, if it is not the server."""
    if config.secure_aggregation == "off":
        return ""
    return "; the nodes add it, so also against a server that follows the protocol"


def _robust(config: RunConfig) -> str:
    if config.aggregation == "mean":
        return "off: a client's bad update moves the mean (aggregation)"
    return f"on: {config.aggregation}"
